"""The file of rows: one pass finds where each begins; the rows themselves stay on disk.

A row takes 17 bytes of memory whatever its length, and some 50 more while ids are compared.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from flashllm.batch.row import Row, RowDefaults, RowFailure, RowForm, RowId
from flashllm.batch.row_line import ROW_BYTES_MAX, form_of, read_row
from flashllm.errors import BatchRowError, ReadFailed, UsageError
from flashllm.system.resumable_file import write_error

STREAM = "-"
"""The path of standard input, and of standard output."""
COPY_BYTES = 1 << 20
_ID_BYTES = 16
"""Of an id's hash: two ids of the same are not to be found."""


class InputRows:
    """The rows of a file, by number; close it, or use it as a context manager."""

    def __init__(self, file: BinaryIO, name: str, defaults: RowDefaults) -> None:
        """Reads the file through; `UsageError` for one without rows, `ReadFailed`."""
        self.name = name
        self.form: RowForm = "rows"
        self.nbytes = 0
        self.failures = 0
        """Rows that cannot be answered, whatever the model says."""
        self.first_failure: RowFailure | None = None
        self._file = file
        self._defaults = defaults
        self._offsets, self._lines = array("Q"), array("Q")
        self._is_duplicate = b""
        self._hash = hashlib.blake2b(digest_size=32)
        try:
            self._state = self._file_state()
            self._read_through()
        except OSError as error:
            raise self._read_error(error) from error
        self.content_hash = self._hash.hexdigest()
        """Of all bytes of the file, in hexadecimal digits."""
        if not len(self):
            raise UsageError(f"{name}: has no rows; write a JSON object a line")

    def __len__(self) -> int:
        return len(self._offsets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def row(self, number: int) -> Row | RowFailure:
        """Reads the row of that number, from 0; `ReadFailed`, also if the file was changed."""
        try:
            self._file.seek(self._offsets[number])
            raw = self._file.readline(ROW_BYTES_MAX + 1)
            if self._file_state() != self._state:
                raise ReadFailed(
                    f"{self.name}: was changed while its rows were being answered; put it back as"
                    " it was to go on, or begin again with --overwrite"
                )
        except OSError as error:
            raise self._read_error(error) from error
        line = raw if len(raw) <= ROW_BYTES_MAX else None
        row = read_row(line, self._lines[number], self.form, self._defaults)
        if self._is_duplicate[number] and isinstance(row, Row):
            return _duplicate(row.line, row.id)
        return row

    def line(self, number: int) -> int:
        """The line, from 1, of the row of that number."""
        return self._lines[number]

    def number_of(self, line: int) -> int | None:
        """The number of the row of that line; None where there is none."""
        number = bisect_left(self._lines, line)
        return number if number < len(self) and self._lines[number] == line else None

    def is_file(self, status: os.stat_result) -> bool:
        """Whether this is the file that has this status."""
        return os.path.samestat(os.fstat(self._file.fileno()), status)

    def _file_state(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _read_error(self, error: OSError) -> ReadFailed:
        return ReadFailed(f"{self.name}: cannot be read: {error.strerror or error}")

    def _read_through(self) -> None:
        self._file.seek(0)
        ids, is_failure, form = bytearray(), bytearray(), None
        for line, (offset, raw) in enumerate(self._file_lines(), 1):
            if raw is not None and not raw.strip():
                continue
            self._offsets.append(offset)
            self._lines.append(line)
            if form is None and (form := form_of(raw)) is not None:
                self.form = form
            row = read_row(raw, line, self.form, self._defaults)
            ids += _id_hash(row.id, line)
            is_failure.append(isinstance(row, RowFailure))
        self._is_duplicate = _occurred_before(ids)
        failing = np.frombuffer(is_failure, dtype=bool) | np.frombuffer(self._is_duplicate, bool)
        self.failures = int(np.count_nonzero(failing))
        if self.failures:
            first = self.row(int(np.argmax(failing)))
            self.first_failure = first if isinstance(first, RowFailure) else None

    def _file_lines(self) -> Iterator[tuple[int, bytes | None]]:
        """(offset, line) of each line; None for one that is longer than a row may be."""
        while raw := self._file.readline(ROW_BYTES_MAX + 1):
            offset, self.nbytes = self.nbytes, self.nbytes + len(raw)
            self._hash.update(raw)
            is_long = len(raw) > ROW_BYTES_MAX
            yield offset, None if is_long else raw
            while is_long and not raw.endswith(b"\n") and (raw := self._file.readline(COPY_BYTES)):
                self.nbytes += len(raw)
                self._hash.update(raw)


def open_source(path: str) -> BinaryIO:
    """A file of rows, not read yet; `-` is standard input. `UsageError` for what is no file."""
    try:
        return _standard_input() if path == STREAM else open(path, "rb")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}; the order of the words is"
            " `flashllm batch IN OUT [MODEL]`"
        ) from error


def read_rows(
    source: BinaryIO, path: str, defaults: RowDefaults, scratch: Path | None = None
) -> InputRows:
    """The rows of an open file of that path, which they own from here on.

    What cannot be read twice, such as a pipe, is first copied to its end into a file without a name
    in the directory `scratch` (default: the system's for temporary files). Errors: `UsageError` for
    a file without rows, `ReadFailed`, `CannotCreate`.
    """
    name = "standard input" if path == STREAM else path
    file = source
    try:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            with source:
                file = _copied(source, name, scratch)
        return InputRows(file, name, defaults)
    except BaseException:
        file.close()
        raise


def _standard_input() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("standard input is closed; name a file of rows")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _copied(source: BinaryIO, name: str, scratch: Path | None) -> BinaryIO:
    copy: BinaryIO | None = None
    try:
        copy = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115  InputRows closes it
        shutil.copyfileobj(source, copy, COPY_BYTES)
        copy.flush()
    except OSError as error:
        if copy is not None:
            copy.close()
        raise write_error(Path(f"a copy of {name}"), error) from error
    return copy


def _id_hash(id_: RowId, line: int) -> bytes:
    """A hash of the id as text; of the line where there is no id, which is equal to nothing."""
    text = f"line {line}" if id_ is None else f"id {id_}"
    raw = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=_ID_BYTES).digest()


def _occurred_before(hashes: bytearray) -> bytes:
    """A byte for each hash: 1 where it occurred before."""
    halves = np.frombuffer(hashes, dtype="<u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # which is stable
    is_same = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    found = np.zeros(len(halves), dtype=np.uint8)
    found[order[1:][is_same]] = 1
    return found.tobytes()


def _duplicate(line: int, id_: RowId) -> RowFailure:
    text = f"an earlier row has the id {id_!r:.80} too; give each row one of its own"
    return RowFailure.of(line, id_, BatchRowError("duplicate_id", text))
