"""Rows of a matrix that stays on flash, read as they are needed.

An embedding is looked up a row a token: a few KB, where all of it may be a gibibyte. The matrix is
read through once when a model is opened, as if it were loaded: what was written is held against
its checksum, and each row gets one of its own, since it will be read alone. What that takes for a
moment is free then: slots come later.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.flash.checksums import Part, TensorHash, damaged, forget_cached
from flashllm.flash.file_loading import (
    OnRead,
    ReadErrors,
    ignore_read,
    open_file_reader,
)
from flashllm.flash.safetensors_file import DATA_ALIGNMENT, TensorRecord
from flashllm.flash.tensor_spans import ROW_THREADS, ROWS_AT_ONCE, row_place_bytes

_PIECE_BYTES = 4 << 20
"""Read at a time while the matrix is read through."""


class MatrixRows:
    """Encoded rows of one matrix of a file. One caller at a time."""

    def __init__(
        self, path: Path, name: str, record: TensorRecord, dtype: str, direct: bool
    ) -> None:
        """The matrix `name`, which is `record`, in rows of `dtype`; errors as of opening a file."""
        self.dtype, self.count = dtype, record.shape[0]
        self._path, self._name, self._start = path, name, record.offset
        self._row_bytes = record.nbytes // self.count
        self._place_bytes = row_place_bytes(self._row_bytes)
        self._buffer = core.Buffer(ROWS_AT_ONCE * self._place_bytes, huge_pages=False)
        self._raw = self._buffer.array()
        self._id = secrets.token_bytes(16)
        self._sums: NDArray[np.uint32] | None = None
        self._reader = open_file_reader(path, direct, threads=ROW_THREADS)

    def check(self, part: Part | None, on_read: OnRead = ignore_read) -> None:
        """Reads all rows, so that each can be held against a checksum from now on.

        `part` has the checksum of the matrix as it was written; None where the file has none of
        its own. `ChecksumMismatch` where it is wrong, also when it is read again.
        """
        for again in (False, True):
            sums = [np.empty(0, np.uint32)]
            whole = TensorHash(self._name if part is None else part.name)
            for first, rows in self._pieces():
                whole.update(rows)
                sums.append(self._row_sums(rows, first))
                if not again:
                    on_read(len(rows))
            if part is None or whole.digest() == part.expected:
                self._sums = np.concatenate(sums)
                return
            forget_cached(self._path)
        assert part is not None
        raise damaged(self._path, part.where)

    def read(self, ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """The rows `ids`, [n * row bytes]; those of one call are gone with the next.

        `ReadFailed` or `ChecksumMismatch` for a row that cannot be read as it was written.
        """
        size = self._row_bytes
        out = np.empty(len(ids) * size, np.uint8)
        for first in range(0, len(ids), ROWS_AT_ONCE):
            some = ids[first : first + ROWS_AT_ONCE]
            rows = self._read(some)
            if self._sums is not None and (self._sums_of(rows, some) != self._sums[some]).any():
                forget_cached(self._path)
                rows = self._read(some)
                wrong = self._sums_of(rows, some) != self._sums[some]
                if wrong.any():
                    row = int(some[np.argmax(wrong)])
                    raise damaged(self._path, f", tensor {self._name}, row {row}")
            out[first * size : first * size + len(rows)] = rows
        return out

    def stats(self) -> dict[str, int | list[int]]:
        """The reader's counters."""
        return self._reader.stats()

    def close(self) -> None:
        """End the reader's threads, and drop the memory."""
        self._reader.close()
        self.__dict__.pop("_buffer", None)
        self.__dict__.pop("_raw", None)

    def _read(self, ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Rows in the order of `ids`, one behind the other."""
        offsets = self._start + ids.astype(np.int64) * self._row_bytes
        places = np.arange(len(ids)) * self._place_bytes + offsets % DATA_ALIGNMENT
        with ReadErrors(f"{self._path}, tensor {self._name}"):
            self._reader.read(offsets, self._row_bytes, self._buffer, places)
        return np.concatenate([self._raw[place : place + self._row_bytes] for place in places])

    def _pieces(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """The number of the first row of some, and their bytes, until all were there."""
        step = max(_PIECE_BYTES // self._row_bytes, 1)
        buffer = core.Buffer(step * self._row_bytes + DATA_ALIGNMENT, huge_pages=False)
        raw = buffer.array()
        for first in range(0, self.count, step):
            length = (min(first + step, self.count) - first) * self._row_bytes
            offset = np.array([self._start + first * self._row_bytes], np.int64)
            place = offset % DATA_ALIGNMENT
            with ReadErrors(f"{self._path}, tensor {self._name}"):
                self._reader.read(offset, length, buffer, place)
            yield first, raw[int(place[0]) : int(place[0]) + length]

    def _row_sums(self, rows: NDArray[np.uint8], first: int) -> NDArray[np.uint32]:
        count = len(rows) // self._row_bytes
        return self._sums_of(rows, np.arange(first, first + count, dtype=np.int32))

    def _sums_of(self, rows: NDArray[np.uint8], ids: NDArray[np.int32]) -> NDArray[np.uint32]:
        begins = np.arange(len(ids)) * np.int64(self._row_bytes)
        numbers = ids.astype(np.uint32)
        return core.bundle_checksums(rows, begins, self._row_bytes, self._id, 0, numbers)
