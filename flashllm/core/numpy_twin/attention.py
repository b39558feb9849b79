"""The twin in numpy of the native core's attention: the same checks, the same answers, slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin import rows as numpy_rows
from flashllm.core.numpy_twin.arguments import require_array

_F16_END = 65520.0


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows of one layer's keys, or values; in one piece they lie as [kv_heads, capacity, row]."""

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
    first, end = seen
    all_keys, all_values = cache.of("keys", keys), cache.of("values", values)
    if len(keys) != len(values):
        raise ValueError(f"values has {len(values)} bytes, and keys has {len(keys)}")
    _check_heads(query, cache, out, sinks)
    if not 0 <= first < end <= all_keys.shape[1]:
        raise IndexError(f"positions {first} to {end} of {all_keys.shape[1]}")
    _attend_heads(query, all_keys[:, first:end], all_values[:, first:end], cache, scale, out, sinks)


def attend_runs(
    query: NDArray[np.float32],
    keys: NDArray[np.uint8],
    values: NDArray[np.uint8],
    cache: HeadRows,
    runs: Runs,
    scale: float,
    out: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
) -> None:
    """`attend` to all rows in runs."""
    _check_heads(query, cache, out, sinks)
    rows = runs.gather(keys, values, numpy_rows.row_bytes(cache.dtype, cache.columns))
    _attend_heads(query, *rows, cache, scale, out, sinks)


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows of each key head: `runs` [n, 3], of head h up to run ends[h]."""

    runs: NDArray[np.int64]
    ends: NDArray[np.int32]

    def gather(
        self, keys: NDArray[np.uint8], values: NDArray[np.uint8], row_bytes: int
    ) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
        """Copies of each head's rows of keys and of values, [rows, row] in order."""
        require_array("keys", keys, np.uint8)
        require_array("values", values, np.uint8)
        self._check()
        gathered: tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]] = ([], [])
        begin = 0
        for head, end in enumerate(self.ends.tolist()):
            own = self.runs[begin:end].tolist()
            begin = end
            for run in own:
                if run[2] < 1:
                    raise ValueError(f"a run has {run[2]} rows")
            if not own:
                raise ValueError(f"head {head} of keys has no rows")
            for kind, (name, data) in enumerate((("keys", keys), ("values", values))):
                for run in own:
                    if run[kind] < 0 or run[kind] + run[2] * row_bytes > len(data):
                        raise IndexError(f"a run's {name} are outside {len(data)} bytes")
                pieces = [data[run[kind] : run[kind] + run[2] * row_bytes] for run in own]
                gathered[kind].append(np.concatenate(pieces).reshape(-1, row_bytes))
        return gathered

    def _check(self) -> None:
        if self.runs.dtype != np.int64 or self.runs.ndim != 2:
            raise TypeError("runs must be a 2-dimensional array of int64")
        require_array("run_ends", self.ends, np.int32)
        if self.runs.shape[1] != 3:
            raise ValueError(f"runs has rows of {self.runs.shape[1]} numbers; expected 3")
        ends = self.ends.tolist()
        if ends != sorted(ends) or ends[0] < 0 or ends[-1] != len(self.runs):
            raise ValueError(f"run_ends must rise to the number of runs, {len(self.runs)}")


def _check_heads(
    query: NDArray[np.float32],
    cache: HeadRows,
    out: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
) -> None:
    require_array("query", query, np.float32)
    require_array("out", out, np.float32, writable=True)
    numpy_rows.row_bytes(cache.dtype, cache.columns)
    if cache.kv_heads < 1:
        raise ValueError(f"kv_heads is {cache.kv_heads}")
    shared = cache.columns * cache.kv_heads
    if not len(query) or len(query) % shared or len(out) != len(query):
        raise ValueError(
            f"query has {len(query)} values and out {len(out)}; a multiple of {shared} was expected"
            " of both"
        )
    if sinks is not None:
        require_array("sinks", sinks, np.float32)
        if len(sinks) != len(query) // cache.columns:
            raise ValueError(
                f"sinks has {len(sinks)} values for {len(query) // cache.columns} heads"
            )


def _attend_heads(
    query: NDArray[np.float32],
    keys: Sequence[NDArray[np.uint8]] | NDArray[np.uint8],
    values: Sequence[NDArray[np.uint8]] | NDArray[np.uint8],
    cache: HeadRows,
    scale: float,
    out: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
) -> None:
    """Attention to [rows, row] of each key head."""
    kv_heads = cache.kv_heads
    heads = query.reshape(kv_heads, -1, cache.columns)
    result = out.reshape(heads.shape)
    for head in range(kv_heads):
        scores = np.float32(scale) * (heads[head] @ cache.decode(keys[head]).T)
        if sinks is not None:
            # One more score, of no position.
            scores = np.hstack([scores, sinks.reshape(kv_heads, -1, 1)[head]])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = (weights / weights.sum(axis=1, keepdims=True))[:, : len(keys[head])]
        result[head] = weights @ cache.decode(values[head])


def attend_each(
    query: NDArray[np.float32],
    keys: Sequence[NDArray[np.uint8]],
    values: Sequence[NDArray[np.uint8]],
    cache: HeadRows,
    seen: tuple[NDArray[np.int64], int],
    scale: float,
    out: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
) -> None:
    """`attend` of a token of each of several contexts; `seen` is ends and window."""
    ends, window = seen
    require_array("query", query, np.float32, dimensions=2)
    require_array("out", out, np.float32, writable=True, dimensions=2)
    require_array("ends", ends, np.int64)
    _check_counts(len(query), keys=keys, values=values, ends=ends, out=out)
    if window < 0:
        raise ValueError(f"window is {window}")
    found = np.empty_like(out)  # what one of them refuses is refused before anything is written
    for i, end in enumerate(ends.tolist()):
        first = max(end - window, 0) if window else 0
        attend(query[i], keys[i], values[i], cache, (first, end), scale, found[i], sinks)
    out[...] = found


def _check_counts(contexts: int, **given: Sequence[Any] | NDArray[Any]) -> None:
    for name, each in given.items():
        if len(each) != contexts:
            raise ValueError(f"there are {len(each)} {name} for {contexts} contexts")


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
    tokens, end, window = seen
    width = _width(query, out, tokens, window)
    # All that one of them could refuse, before anything is written.
    attend(query[-width:], keys, values, cache, (0, end), scale, np.empty(width, np.float32), sinks)
    if tokens > end:
        raise IndexError(f"{tokens} tokens of {end} positions")
    for token in range(tokens):
        own = slice(token * width, (token + 1) * width)
        last = end - tokens + token + 1
        first = max(last - window, 0) if window else 0
        attend(query[own], keys, values, cache, (first, last), scale, out[own], sinks)


def attend_many_runs(
    query: NDArray[np.float32],
    keys: NDArray[np.uint8],
    values: NDArray[np.uint8],
    cache: HeadRows,
    runs: Runs,
    seen: tuple[int, int],
    scale: float,
    out: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
) -> None:
    """`attend_many` of rows in runs; `seen` is tokens and window."""
    tokens, window = seen
    width = _width(query, out, tokens, window)
    _check_heads(query[:width], cache, np.empty(width, np.float32), sinks)
    rows = runs.gather(keys, values, numpy_rows.row_bytes(cache.dtype, cache.columns))
    if len({len(of_head) for of_head in rows[0]}) > 1:
        raise ValueError(f"heads of keys have {[len(of_head) for of_head in rows[0]]} rows")
    keys, values = (np.concatenate([one.ravel() for one in kind]) for kind in rows)
    end = len(rows[0][0])
    attend_many(query, keys, values, cache, (tokens, end, window), scale, out, sinks)


def _width(query: NDArray[np.float32], out: NDArray[np.float32], tokens: int, window: int) -> int:
    """Values of each token's query."""
    require_array("query", query, np.float32)
    require_array("out", out, np.float32, writable=True)
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}")
    if window < 0:
        raise ValueError(f"window is {window}")
    if len(query) % tokens or len(out) != len(query):
        raise ValueError(f"query has {len(query)} values and out {len(out)}, for {tokens} tokens")
    return len(query) // tokens


def write_head_rows(
    values: NDArray[np.float32], cache: HeadRows, position: int, rows: NDArray[np.uint8]
) -> None:
    """Encode values [kv_heads, tokens, columns] as the rows of positions from `position` on."""
    require_array("values", values, np.float32)
    places = _places(len(values), cache, position, rows)
    if not np.isfinite(values).all():
        raise ValueError("a value is no finite number")
    if not places.shape[1]:
        return
    if cache.dtype == "f16" and np.abs(values).max() >= _F16_END:
        raise OverflowError(f"{np.abs(values).max()} is too large for f16")
    try:
        encoded = numpy_rows.encode(values.reshape(-1, cache.columns), cache.dtype, 0)
    except ValueError as error:  # they are finite, so that what is left is their size
        raise OverflowError(f"{np.abs(values).max()} is too large for {cache.dtype}") from error
    places[...] = encoded.reshape(places.shape)


def _places(
    values: int, cache: HeadRows, position: int, rows: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Where the rows of so many values go, [kv_heads, tokens, row], checked."""
    lying = cache.of("cache", rows)
    kv_heads, capacity = lying.shape[:2]
    if values % (cache.columns * kv_heads):
        raise ValueError(f"values has {values} values; whole rows for every head were expected")
    tokens = values // cache.columns // kv_heads
    if position < 0 or position + tokens > capacity:
        raise IndexError(f"{tokens} rows from {position} on are beyond {capacity}")
    return lying[:, position : position + tokens]


def write_head_rows_each(
    values: NDArray[np.float32],
    cache: HeadRows,
    positions: NDArray[np.int64],
    caches: Sequence[NDArray[np.uint8]],
) -> None:
    """`write_head_rows` of a token of each of several contexts."""
    require_array("values", values, np.float32, dimensions=2)
    require_array("positions", positions, np.int64)
    _check_counts(len(values), positions=positions, caches=caches)
    if len({rows.ctypes.data for rows in caches}) < len(caches):
        raise ValueError("two contexts have the same cache")
    width = cache.kv_heads * cache.columns
    if len(values) and width > 0 and values.shape[1] != width:
        raise ValueError(f"values has rows of {values.shape[1]}; a token of {width} was expected")
    for position, rows in zip(positions.tolist(), caches, strict=True):
        _places(values.shape[1], cache, position, rows)
    for row, position, rows in zip(values, positions.tolist(), caches, strict=True):
        write_head_rows(row, cache, position, rows)
