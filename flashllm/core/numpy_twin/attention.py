"""The twin in numpy of the native core's attention: the same checks, the same answers, slow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin import rows as numpy_rows
from flashllm.core.numpy_twin.arguments import require_array

_F16_END = 65520.0


@dataclass(frozen=True, slots=True)
class HeadRows:
    """How the rows of one layer's keys, or values, lie: [kv_heads, capacity, row]."""

    dtype: str
    columns: int
    kv_heads: int

    def of(self, name: str, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The rows as [kv_heads, capacity, row], checked."""
        require_array(name, rows, np.uint8)
        row_bytes = numpy_rows.row_bytes(self.dtype, self.columns)
        if self.kv_heads < 1:
            raise ValueError(f"kv_heads is {self.kv_heads}")
        if len(rows) % (row_bytes * self.kv_heads):
            raise ValueError(
                f"{name} has {len(rows)} bytes; whole rows of {row_bytes} for {self.kv_heads} heads"
                " were expected"
            )
        return rows.reshape(self.kv_heads, -1, row_bytes)

    def decode(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """From [rows, row] to [rows, columns]."""
        return numpy_rows.decode(rows, self.dtype, self.columns)


def attend(
    query: NDArray[np.float32],
    keys: NDArray[np.uint8],
    values: NDArray[np.uint8],
    cache: HeadRows,
    seen: tuple[int, int],
    scale: float,
    out: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
) -> None:
    """One token's attention, out [heads * columns], to positions seen[0] to seen[1] - 1."""
    require_array("query", query, np.float32)
    require_array("out", out, np.float32, writable=True)
    first, end = seen
    columns, kv_heads = cache.columns, cache.kv_heads
    all_keys, all_values = cache.of("keys", keys), cache.of("values", values)
    if len(keys) != len(values):
        raise ValueError(f"values has {len(values)} bytes, and keys has {len(keys)}")
    shared = columns * kv_heads
    if not len(query) or len(query) % shared or len(out) != len(query):
        raise ValueError(
            f"query has {len(query)} values and out {len(out)}; a multiple of {shared} was expected"
            " of both"
        )
    if sinks is not None:
        require_array("sinks", sinks, np.float32)
        if len(sinks) != len(query) // columns:
            raise ValueError(f"sinks has {len(sinks)} values for {len(query) // columns} heads")
    if not 0 <= first < end <= all_keys.shape[1]:
        raise IndexError(f"positions {first} to {end} of {all_keys.shape[1]}")
    heads = query.reshape(kv_heads, -1, columns)
    result = out.reshape(heads.shape)
    for head in range(kv_heads):
        scores = np.float32(scale) * (heads[head] @ cache.decode(all_keys[head, first:end]).T)
        if sinks is not None:
            # One more score, of no position.
            scores = np.hstack([scores, sinks.reshape(kv_heads, -1, 1)[head]])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = (weights / weights.sum(axis=1, keepdims=True))[:, : end - first]
        result[head] = weights @ cache.decode(all_values[head, first:end])


def attend_many(
    query: NDArray[np.float32],
    keys: NDArray[np.uint8],
    values: NDArray[np.uint8],
    cache: HeadRows,
    seen: tuple[int, int, int],
    scale: float,
    out: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
) -> None:
    """Attention of the last tokens of so many positions, one after the other.

    `seen` is tokens, end and window.
    """
    require_array("query", query, np.float32)
    require_array("out", out, np.float32, writable=True)
    tokens, end, window = seen
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}")
    if window < 0:
        raise ValueError(f"window is {window}")
    if len(query) % tokens or len(out) != len(query):
        raise ValueError(f"query has {len(query)} values and out {len(out)}, for {tokens} tokens")
    width = len(query) // tokens
    # All that one of them could refuse, before anything is written.
    attend(query[-width:], keys, values, cache, (0, end), scale, np.empty(width, np.float32), sinks)
    if tokens > end:
        raise IndexError(f"{tokens} tokens of {end} positions")
    for token in range(tokens):
        own = slice(token * width, (token + 1) * width)
        last = end - tokens + token + 1
        first = max(last - window, 0) if window else 0
        attend(query[own], keys, values, cache, (first, last), scale, out[own], sinks)


def write_head_rows(
    values: NDArray[np.float32], cache: HeadRows, position: int, rows: NDArray[np.uint8]
) -> None:
    """Encode values [kv_heads, tokens, columns] as the rows of positions from `position` on."""
    require_array("values", values, np.float32)
    lying = cache.of("cache", rows)
    kv_heads, capacity = lying.shape[:2]
    if len(values) % (cache.columns * kv_heads):
        raise ValueError(
            f"values has {len(values)} values; whole rows for every head were expected"
        )
    tokens = len(values) // cache.columns // kv_heads
    if position < 0 or position + tokens > capacity:
        raise IndexError(f"{tokens} rows from {position} on are beyond {capacity}")
    if not np.isfinite(values).all():
        raise ValueError("a value is no finite number")
    if not tokens:
        return
    if cache.dtype == "f16" and np.abs(values).max() >= _F16_END:
        raise OverflowError(f"{np.abs(values).max()} is too large for f16")
    try:
        encoded = numpy_rows.encode(values.reshape(-1, cache.columns), cache.dtype, 0)
    except ValueError as error:  # they are finite, so that what is left is their size
        raise OverflowError(f"{np.abs(values).max()} is too large for {cache.dtype}") from error
    lying[:, position : position + tokens] = encoded.reshape(kv_heads, tokens, -1)
