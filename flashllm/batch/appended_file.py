"""A file of lines that grows at its end: a line is there whole, or was not written."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flashllm.system.resumable_file import write_error

SYNC_SECONDS = 5.0
"""Lines are on the disk after this time at the latest, if another one follows them."""


class AppendedFile:
    """An open file and its end; errors of writing are `CannotCreate` or `NotEnoughSpace`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Owns the descriptor from here on; `path` is for errors."""
        self.path = path
        self.nbytes = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._synced_seconds = time.monotonic()

    def status(self) -> os.stat_result:
        """What the system knows of the file."""
        return os.fstat(self._descriptor)

    def append(self, line: bytes) -> int:
        """Writes a line at the end and returns its offset; nothing of it stays after an error."""
        offset, left = self.nbytes, memoryview(line)
        try:
            while left:
                written = os.pwrite(self._descriptor, left, self.nbytes)
                self.nbytes, left = self.nbytes + written, left[written:]
            if time.monotonic() - self._synced_seconds >= SYNC_SECONDS:
                self._sync()
        except OSError as error:
            with contextlib.suppress(OSError):  # then the next run cuts it off
                self._cut(offset)
            raise write_error(self.path, error) from error
        return offset

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes that were appended."""
        return os.pread(self._descriptor, nbytes, offset)

    def lines(self, bytes_max: int) -> Iterator[tuple[int, bytes]]:
        """(offset, line) from the beginning; a longer line comes in pieces of `bytes_max`."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            offset = file.seek(0)
            while line := file.readline(bytes_max):
                yield offset, line
                offset += len(line)

    def cut(self, nbytes: int) -> None:
        """Leaves that many bytes."""
        try:
            self._cut(nbytes)
        except OSError as error:
            raise write_error(self.path, error) from error

    def sync(self) -> None:
        """Has everything outlive a loss of power."""
        try:
            self._sync()
        except OSError as error:
            raise write_error(self.path, error) from error

    def close(self) -> None:
        """Closes the file, and gives a lock on it back."""
        os.close(self._descriptor)

    def _cut(self, nbytes: int) -> None:
        os.ftruncate(self._descriptor, nbytes)
        self.nbytes = nbytes

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_seconds = time.monotonic()
