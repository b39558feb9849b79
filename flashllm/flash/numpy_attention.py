"""The twin in numpy of the native core's attention: the same checks, the same answers, slow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flashllm.flash.numpy_reader import require_array

Decode = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""From encoded rows [..., row] to their values [..., columns]."""


def attend(
    query: NDArray[np.float32],
    keys: NDArray[np.uint8],
    values: NDArray[np.uint8],
    row_bytes: int,
    decode: Decode,
    columns: int,
    kv_heads: int,
    seen: tuple[int, int],
    scale: float,
    out: NDArray[np.float32],
) -> None:
    """One token's attention, out [heads * columns], to positions seen[0] to seen[1] - 1."""
    require_array("query", query, np.float32)
    require_array("out", out, np.float32, writable=True)
    first, end = seen
    all_keys = head_rows("keys", keys, row_bytes, kv_heads)
    all_values = head_rows("values", values, row_bytes, kv_heads)
    if len(keys) != len(values):
        raise ValueError(f"values has {len(values)} bytes, and keys has {len(keys)}")
    shared = columns * kv_heads
    if not len(query) or len(query) % shared or len(out) != len(query):
        raise ValueError(
            f"query has {len(query)} values and out {len(out)}; a multiple of {shared} was expected"
            " of both"
        )
    if not 0 <= first < end <= all_keys.shape[1]:
        raise IndexError(f"positions {first} to {end} of {all_keys.shape[1]}")
    heads = query.reshape(kv_heads, -1, columns)
    result = out.reshape(heads.shape)
    for head in range(kv_heads):
        scores = np.float32(scale) * (heads[head] @ decode(all_keys[head, first:end]).T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        result[head] = weights @ decode(all_values[head, first:end])


def head_rows(
    name: str, rows: NDArray[np.uint8], row_bytes: int, kv_heads: int
) -> NDArray[np.uint8]:
    """The rows of one layer's keys or values as [kv_heads, capacity, row], checked."""
    require_array(name, rows, np.uint8)
    if kv_heads < 1:
        raise ValueError(f"kv_heads is {kv_heads}")
    if len(rows) % (row_bytes * kv_heads):
        raise ValueError(
            f"{name} has {len(rows)} bytes; whole rows of {row_bytes} for {kv_heads} heads were"
            " expected"
        )
    return rows.reshape(kv_heads, -1, row_bytes)


def tokens_to_write(
    values: NDArray[np.float32], columns: int, position: int, rows: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """Values [kv_heads, tokens, columns] for `rows` from a position on, checked."""
    require_array("values", values, np.float32)
    kv_heads, capacity = rows.shape[:2]
    if len(values) % (columns * kv_heads):
        raise ValueError(
            f"values has {len(values)} values; whole rows for every head were expected"
        )
    if not np.isfinite(values).all():
        raise ValueError("a value is no finite number")
    tokens = len(values) // columns // kv_heads
    if position < 0 or position + tokens > capacity:
        raise IndexError(f"{tokens} rows from {position} on are beyond {capacity}")
    return values.reshape(kv_heads, tokens, columns)
