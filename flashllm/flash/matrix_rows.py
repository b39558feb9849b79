"""Rows of a matrix that stays on flash, read as they are needed.

An embedding is looked up a row a token: a few KB, where all of it may be a gibibyte. The matrix is
read through once when a model is opened, as if it were loaded: what was written is held against
its checksum, and each row gets one of its own, since it will be read alone. What that takes for a
moment is free then: slots come later.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.flash.checksums import Part, damaged, forget_cached
from flashllm.flash.file_loading import (
    OnRead,
    ReadErrors,
    ignore_read,
    open_file_reader,
)
from flashllm.flash.layout import round_up
from flashllm.flash.row_memory import ROW_THREADS, ROWS_AT_ONCE, row_place_bytes
from flashllm.flash.safetensors_file import DATA_ALIGNMENT, TensorRecord

_PIECE_BYTES = 4 << 20
"""Read at a time while the matrix is read through."""


class MatrixRows:
    """Encoded rows of one matrix of a file. One caller at a time."""

    def __init__(
        self,
        path: Path,
        name: str,
        record: TensorRecord,
        dtype: str,
        direct: bool,
        wait: AbstractContextManager[None],
    ) -> None:
        """The matrix `name`, which is `record`, in rows of `dtype`; errors as of opening a file.

        Reads of rows are within `wait`.
        """
        self.dtype, self.count = dtype, record.shape[0]
        self._path, self._name, self._start = path, name, record.offset
        self._row_bytes = record.nbytes // self.count
        self._place_bytes = row_place_bytes(self._row_bytes)
        self._buffer = core.Buffer(ROWS_AT_ONCE * self._place_bytes, huge_pages=False)
        self._raw = self._buffer.array()
        self._id = secrets.token_bytes(16)
        self._sums: NDArray[np.uint32] | None = None
        most = max(round_up(self._row_bytes, DATA_ALIGNMENT), DATA_ALIGNMENT)
        self._direct, self._wait = direct, wait
        self._reader = open_file_reader(
            path, direct, threads=ROW_THREADS, max_read_bytes=most + DATA_ALIGNMENT
        )

    def check(self, part: Part | None, on_read: OnRead = ignore_read) -> None:
        """Reads all rows, so that each can be held against a checksum from now on.

        `part` has the checksum of the matrix as it was written; None where the file has none of
        its own. `ChecksumMismatch` where it is wrong, also when it is read again.
        """
        for again in (False, True):
            sums = [np.empty(0, np.uint32)]
            whole = None if part is None else part.new_hash()
            for first, rows in self._pieces():
                if whole is not None:
                    whole.update(rows)
                sums.append(self._row_sums(rows, first))
                if not again:
                    on_read(len(rows))
            if part is None or whole is None or whole.digest() == part.expected:
                self._sums = np.concatenate(sums)
                return
            self._forget_cached()
        assert part is not None
        raise damaged(self._path, part.where)

    def read(self, ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """The rows `ids`, at most `ROWS_AT_ONCE`, one behind the other in [n * row bytes].

        `ReadFailed` or `ChecksumMismatch` for a row that cannot be read as it was written, and
        IndexError for one that there is not.
        """
        assert len(ids) <= ROWS_AT_ONCE
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.count:
            raise IndexError(f"a row of {self._name} outside its {self.count}")
        rows = self._read(ids)
        if self._sums is None or np.array_equal(self._sums_of(rows, ids), self._sums[ids]):
            return rows
        # What passed through memory may be right when it is read again.
        self._forget_cached()
        rows = self._read(ids)
        wrong = self._sums_of(rows, ids) != self._sums[ids]
        if wrong.any():
            row = int(ids[np.argmax(wrong)])
            raise damaged(self._path, f", tensor {self._name}, row {row}")
        return rows

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
        with ReadErrors(f"{self._path}, tensor {self._name}"), self._wait:
            self._reader.read(offsets, self._row_bytes, self._buffer, places)
        rows = [self._raw[place : place + self._row_bytes] for place in places.tolist()]
        return np.concatenate([self._raw[:0], *rows])

    def _pieces(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """The number of the first row of some, and their bytes, until all were there.

        The next ones are read while these are looked at.
        """
        step = max(_PIECE_BYTES // self._row_bytes, 1)
        half_bytes = round_up(step * self._row_bytes, DATA_ALIGNMENT) + DATA_ALIGNMENT
        buffer = core.Buffer(2 * half_bytes, huge_pages=False)
        raw = buffer.array()
        firsts = range(0, self.count, step)
        # A reader of its own, whose threads and scratch are gone afterwards.
        with contextlib.closing(open_file_reader(self._path, self._direct)) as reader:

            def begin(number: int) -> tuple[int, int, int]:
                """A ticket for a piece, and where it comes to lie."""
                first = firsts[number]
                length = (min(first + step, self.count) - first) * self._row_bytes
                offset = self._start + first * self._row_bytes
                place = number % 2 * half_bytes + offset % DATA_ALIGNMENT
                offsets, places = np.array([offset], np.int64), np.array([place], np.int64)
                return int(reader.submit(offsets, length, buffer, places)), place, length

            coming: tuple[int, int, int] | None = begin(0)
            try:
                for number, first in enumerate(firsts):
                    assert coming is not None
                    (ticket, place, length), coming = coming, None
                    with ReadErrors(f"{self._path}, tensor {self._name}"):
                        reader.wait(ticket)
                    if number + 1 < len(firsts):
                        coming = begin(number + 1)
                    yield first, raw[place : place + length]
            finally:
                if coming is not None:
                    with contextlib.suppress(OSError, EOFError):
                        reader.wait(coming[0])

    def _forget_cached(self) -> None:
        """The next read is of the device, unless the file has another name by now."""
        with contextlib.suppress(OSError):
            forget_cached(self._path)

    def _row_sums(self, rows: NDArray[np.uint8], first: int) -> NDArray[np.uint32]:
        count = len(rows) // self._row_bytes
        return self._sums_of(rows, np.arange(first, first + count, dtype=np.int32))

    def _sums_of(self, rows: NDArray[np.uint8], ids: NDArray[np.int32]) -> NDArray[np.uint32]:
        begins = np.arange(len(ids)) * np.int64(self._row_bytes)
        numbers = ids.astype(np.uint32)
        return core.bundle_checksums(rows, begins, self._row_bytes, self._id, 0, numbers)
