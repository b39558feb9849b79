"""Where the output grows: a directory beside the destination that becomes it in one rename.

Goals: the destination is complete or absent, whatever interrupts; two processes do not mix; what
a killed process left is removed by the next one. A lock on the directory itself, not its name,
says whether its process lives.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import CannotCreate, DestinationExists, NotEnoughSpace
from flashllm.flash.layout import FileRecord

if TYPE_CHECKING:
    from typing_extensions import Self

SPACE_MARGIN = 0.05


@contextmanager
def partial_directory(destination: Path) -> Iterator[Path]:
    """A fresh locked directory that replaces `destination` when the block ends well.

    On any error, and on Ctrl-C, it is removed.
    """
    partial, lock = _create(destination)
    try:
        try:
            yield partial
            _publish(partial, destination)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            os.close(lock)
    except OSError as problem:
        raise write_error(problem, partial) from problem


def _create(destination: Path) -> tuple[Path, int]:
    """The new directory and the descriptor that holds its lock."""
    parent = destination.parent
    if os.path.lexists(destination):
        raise DestinationExists(f"{destination}: exists already; choose another name or remove it")
    if not parent.is_dir():
        raise CannotCreate(f"{parent}: no such directory; create it first")
    partial = parent / f"{destination.name}.partial-{os.getpid()}"
    try:
        # Under the parent's lock nobody takes a directory just made for a stale one.
        parent_lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(parent_lock, fcntl.LOCK_EX)
            _remove_stale(destination)
            partial.mkdir()
            return partial, _lock(partial)
        finally:
            os.close(parent_lock)
    except OSError as problem:
        raise write_error(problem, partial) from problem


def _lock(directory: Path) -> int:
    """A descriptor that holds the lock of a directory; `BlockingIOError` when another has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_stale(destination: Path) -> None:
    """Remove what dead processes left; `CannotCreate` when a living one writes the same model."""
    prefix = f"{destination.name}.partial-"
    for path in sorted(destination.parent.iterdir()):
        if not path.name.startswith(prefix) or not path.name[len(prefix) :].isdigit():
            continue
        try:
            lock = _lock(path)
        except BlockingIOError as problem:
            raise CannotCreate(
                f"{destination}: process {path.name[len(prefix) :]} is writing it; wait for it"
            ) from problem
        shutil.rmtree(path)
        os.close(lock)


def _publish(partial: Path, destination: Path) -> None:
    """Make the directory durable, then give it its name."""
    sync(partial)
    if os.path.lexists(destination):
        raise DestinationExists(f"{destination}: was created by somebody else meanwhile")
    os.rename(partial, destination)
    sync(destination.parent)


def sync(path: Path) -> None:
    """Make a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_space(directory: Path, needed_bytes: int) -> None:
    """`NotEnoughSpace` unless the file system has the bytes and 5 % more."""
    status = os.statvfs(directory)
    free_bytes = status.f_bavail * status.f_frsize
    wanted_bytes = int(needed_bytes * (1 + SPACE_MARGIN))
    if free_bytes < wanted_bytes:
        raise NotEnoughSpace(
            f"{directory}: {wanted_bytes:,} bytes are needed, {free_bytes:,} are free; make room "
            "or choose another disk"
        )


def write_error(problem: OSError, path: Path) -> CannotCreate:
    """The error of ours for a failed write."""
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotEnoughSpace(f"{path}: {reason}; make room or choose another disk")
    return CannotCreate(f"{path}: cannot be written: {reason}")


class OutputFile:
    """A new file, written from start to end and hashed on the way; durable when its block ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115

    def write(self, content: bytes | memoryview) -> None:
        """Append."""
        view = memoryview(content).cast("B")
        done = 0
        try:
            while done < len(view):
                done += self._file.write(view[done:]) or 0
        except OSError as problem:
            raise write_error(problem, self._path) from problem
        self._digest.update(view)
        self._bytes += len(view)

    @property
    def record(self) -> FileRecord:
        """Size and hash of what was written so far."""
        return FileRecord(self._bytes, self._digest.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
