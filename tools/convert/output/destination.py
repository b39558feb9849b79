"""Where the output grows: a directory next to the destination, renamed to it at the end.

Goals: the destination is complete or absent, whatever interrupts; two processes do not mix; the
next process removes what a killed one left. A lock on the directory itself, not its name, shows
whether its process lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import (
    CannotCreate,
    DestinationExists,
    Interrupted,
    NotEnoughSpace,
    ReadFailed,
)
from flashllm.flash.manifest import FileRecord
from flashllm.flash.unfinished import PARTIAL_NAME, PULLED, partial_path
from flashllm.progress import Progress
from flashllm.system.atomic_file import sync

from ..source.files import set_direct
from .interruption import format_not_durable, format_stopped

if TYPE_CHECKING:
    from typing import Self

SPACE_MARGIN = 0.05
BLOCK_BYTES = 4 << 20
"""Bytes hashed and written at a time: enough to keep a device busy, in little memory."""
BLOCKS = 4
"""Blocks of a file: one filled, one hashed and one written at once, and a spare one."""


@contextlib.contextmanager
def whole_or_absent(source: Path, destination: Path, progress: Progress) -> Iterator[None]:
    """Turns errors into ours; if one ends the making of `destination`, nothing is left of it.

    A stop is `Interrupted`, and says what is there: a model may be complete by then.
    """
    existed = os.path.lexists(destination)
    try:
        try:
            yield
        finally:
            progress.finish()
    except OSError as problem:
        where = problem.filename or source
        raise ReadFailed(f"{where}: cannot be read: {_reason(problem)}") from problem
    except KeyboardInterrupt as stop:
        raise Interrupted(format_stopped(destination, existed)) from stop


@contextlib.contextmanager
def partial_directory(destination: Path) -> Iterator[Path]:
    """A fresh locked directory that replaces `destination` when the block ends well.

    On any error, and on Ctrl-C, it is removed.
    """
    partial, lock = _create(destination)
    try:
        try:
            yield partial
            publish(partial, destination)
        except BaseException:
            remove_tree(partial)
            raise
        finally:
            os.close(lock)
    except OSError as problem:
        raise write_error(problem, partial) from problem


def check_destination(destination: Path) -> None:
    """`DestinationExists` where something is there, `CannotCreate` where nothing can be."""
    if os.path.lexists(destination):
        raise DestinationExists(f"{destination}: exists already; choose another name or remove it")
    if not os.path.isdir(destination.parent):
        raise CannotCreate(f"{destination.parent}: no such directory; create it first")


def check_writable(destination: Path, needed_bytes: int) -> None:
    """Raises what `partial_directory` and `check_space` would, without writing anything."""
    check_destination(destination)
    parent = destination.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CannotCreate(f"{parent}: cannot be written; choose another place")
    check_space(parent, needed_bytes)


def _create(destination: Path) -> tuple[Path, int]:
    """The new directory and the descriptor that holds its lock."""
    parent = destination.parent
    check_destination(destination)
    partial = partial_path(destination, os.getpid())
    is_made = False
    try:
        # Under the parent's lock nobody takes a directory just made for a stale one.
        parent_lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(parent_lock, fcntl.LOCK_EX)
            _remove_stale(destination)
            partial.mkdir()
            is_made = True
            lock = lock_directory(partial)
        finally:
            os.close(parent_lock)
    except BaseException as problem:
        if is_made:
            remove_tree(partial)
        if isinstance(problem, OSError):
            raise write_error(problem, partial) from problem
        raise
    return partial, lock


def lock_directory(directory: Path) -> int:
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
    for path in sorted(destination.parent.iterdir()):
        match = PARTIAL_NAME.fullmatch(path.name)
        if match is None or match[1] != destination.name or match[2] == PULLED:
            continue
        try:
            lock = lock_directory(path)
        except BlockingIOError as problem:
            raise CannotCreate(
                f"{destination}: process {match[2]} is writing it; wait for it"
            ) from problem
        shutil.rmtree(path)
        os.close(lock)


def publish(partial: Path, destination: Path) -> None:
    """Make a directory beside `destination` durable, then give it that name, durably too.

    Where only the last fails, the model is complete: the error says so.
    """
    sync(partial)
    if os.path.lexists(destination):
        raise DestinationExists(f"{destination}: was created by somebody else meanwhile")
    os.rename(partial, destination)
    try:
        sync(destination.parent)
    except OSError as problem:
        failed = type(write_error(problem, destination.parent))
        raise failed(format_not_durable(destination, _reason(problem))) from problem


def remove_tree(directory: Path) -> None:
    """Remove a directory as far as that can be done."""
    # Stopped just after it has closed a descriptor, rmtree closes that once more.
    with contextlib.suppress(OSError):
        shutil.rmtree(directory, ignore_errors=True)


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
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotEnoughSpace(f"{path}: {_reason(problem)}; make room or choose another disk")
    return CannotCreate(f"{path}: cannot be written: {_reason(problem)}")


def _reason(problem: OSError) -> str:
    return os.strerror(problem.errno) if problem.errno else str(problem)


class OutputFile:
    """A new file, written from start to end and hashed on the way; durable when its block ends.

    What is given to `write` is copied into blocks, which one thread hashes while another writes
    them, past the page cache where the system can; at most BLOCKS of them are on their way. A write
    that fails is raised by a later `write`, or at the end of the block, which ends the threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        self._direct = False
        self._threads: tuple[ThreadPoolExecutor, ...] = ()
        self._block = mmap.mmap(-1, BLOCK_BYTES)  # begins on a page, as direct writes need it
        self._filled = 0
        self._under_way: deque[tuple[mmap.mmap, tuple[Future[None], ...]]] = deque()
        self._blocks = 1
        self._ended = False

    def write(self, content: bytes | memoryview) -> None:
        """Append; `content` may be overwritten afterwards."""
        view = memoryview(content).cast("B")
        done = 0
        while done < len(view):
            part = view[done : done + BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            done += len(part)
            if self._filled == BLOCK_BYTES:
                self._send()
        self._bytes += len(view)

    @property
    def bytes(self) -> int:
        """How many bytes were given to it so far."""
        return self._bytes

    @property
    def record(self) -> FileRecord:
        """Size and hash of what was written, once its block has ended."""
        assert self._ended, "not all is written yet"
        return FileRecord(self._bytes, self._digest.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                while self._under_way:
                    self._wait()
                self._finish()
        finally:
            for thread in self._threads:
                thread.shutdown(cancel_futures=True)
            self._file.close()
            self._ended = True

    def _send(self) -> None:
        """Hand the full block to the threads, and take one that they are done with."""
        if not self._threads:
            self._threads = (ThreadPoolExecutor(1, "hashing"), ThreadPoolExecutor(1, "writing"))
            self._direct = set_direct(self._file.fileno(), True)
        hasher, writer = self._threads
        view = memoryview(self._block)
        jobs = (hasher.submit(self._digest.update, view), writer.submit(self._write_all, view))
        self._under_way.append((self._block, jobs))
        self._filled = 0
        if self._blocks < BLOCKS:
            self._block = mmap.mmap(-1, BLOCK_BYTES)
            self._blocks += 1
        else:
            self._block = self._wait()

    def _wait(self) -> mmap.mmap:
        """The block that was sent first, hashed and written; raises what went wrong with it."""
        block, jobs = self._under_way.popleft()
        for job in jobs:
            job.result()
        return block

    def _write_all(self, view: memoryview) -> None:
        """Append to the file itself."""
        done = 0
        try:
            while done < len(view):
                done += self._file.write(view[done:]) or 0
                if not self._direct and self._threads and hasattr(os, "posix_fadvise"):
                    # Pages that are written out go; writing the others out begins.
                    os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as problem:
            if self._direct and problem.errno == errno.EINVAL:
                self._direct = set_direct(self._file.fileno(), False)
                self._write_all(view[done:])
                return
            raise write_error(problem, self._path) from problem

    def _finish(self) -> None:
        """The last block, which is no whole one, and everything durable."""
        if self._direct:
            self._direct = set_direct(self._file.fileno(), False)
        with memoryview(self._block)[: self._filled] as rest:
            self._digest.update(rest)
            self._write_all(rest)
        os.fsync(self._file.fileno())
