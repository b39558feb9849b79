"""Where rows lie, and how fast memory is read, in numpy: the twin's part of both."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin.arguments import require_array
from flashllm.core.numpy_twin.reader import Buffer, check_threads

__all__ = ["row_read_ns", "row_starts", "stream_read_ns"]


def row_starts(
    rows: NDArray[np.uint8],
    row_stride: int,
    row_offset: int,
    nbytes: int,
    ids: NDArray[np.int32],
) -> list[int]:
    """Byte positions of the rows, checked: IndexError for an id outside `rows`."""
    require_array("rows", rows, np.uint8)
    require_array("ids", ids, np.int32)
    if row_stride < 1 or row_offset < 0:
        raise ValueError(f"row_stride is {row_stride} and row_offset {row_offset}")
    starts = [int(i) * row_stride + row_offset for i in ids]
    for i, start in zip(ids, starts, strict=True):
        if i < 0 or start + nbytes > len(rows):
            raise IndexError(
                f"id {i}: its row ends at byte {start + nbytes}, outside {len(rows)} bytes"
            )
    return starts


def stream_read_ns(buffer: Buffer, threads: int) -> int:
    """Nanoseconds to read the buffer once, on one thread whatever is asked for: the best of few."""
    check_threads(threads)
    values = buffer.array()
    values[::4096] = values[::4096]  # until it is written to, memory is one page of zeros
    words = values[: buffer.nbytes // 8 * 8].view(np.uint64)
    return _best_pass_ns(lambda: words.sum())


def row_read_ns(
    data: NDArray[np.uint8], row_bytes: int, ids: NDArray[np.int32], threads: int
) -> int:
    """Nanoseconds to read rows, row id at byte id * row_bytes, on one thread."""
    check_threads(threads)
    if row_bytes < 1:
        raise ValueError(f"row_bytes is {row_bytes}")
    starts = row_starts(data, row_bytes, 0, row_bytes, ids)
    return _best_pass_ns(lambda: [data[start : start + row_bytes].sum() for start in starts])


def _best_pass_ns(one_pass: Callable[[], object]) -> int:
    best_ns = 1 << 62
    for _ in range(3):
        begin_ns = time.perf_counter_ns()
        one_pass()
        best_ns = min(best_ns, time.perf_counter_ns() - begin_ns)
    return max(best_ns, 1)
