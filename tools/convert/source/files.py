"""Reads the source: ranges of files, safe names, hashes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import ModelTruncated, NotACheckpoint, ReadFailed
from flashllm.progress import Progress

if TYPE_CHECKING:
    from typing import Self

BLOCK_BYTES = 16 << 20
"""Bytes of a tensor in memory at a time, unless it must be whole."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class RangeFile:
    """A file of the source, read by position; closes as a context manager.

    Plain reads into memory of our own: a file that shrinks meanwhile is an error with its place,
    never a fault, and no mapping counts as ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as problem:
            raise ReadFailed(f"{path}: cannot be opened: {problem.strerror}") from problem
        self._identity = _identity(self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        self._direct = False

    @property
    def descriptor(self) -> int:
        """The open file itself."""
        return self._descriptor

    def read_directly(self) -> bool:
        """Bypass the page cache from now on, if the system can; returns whether it does.

        Buffers and offsets must then be whole pages.
        """
        self._direct = set_direct(self._descriptor, True)
        return self._direct

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes from `offset` on."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._descriptor, [buffer[done:]], offset + done)
            except OSError as problem:
                if self._direct and problem.errno == errno.EINVAL:
                    # Accepted at first, refused for these bytes: of some file systems, and where a
                    # read ended early.
                    self._direct = set_direct(self._descriptor, False)
                    continue
                raise ReadFailed(
                    f"{self.path}: byte {offset + done}: {os.strerror(problem.errno or errno.EIO)}"
                ) from problem
            if count == 0:
                raise ModelTruncated(f"{self.path}: ends at byte {offset + done}; fetch it again")
            done += count

    def expect(self, offset: int, length: int) -> None:
        """Tell the system that these bytes will be read soon: it may begin to fetch them."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def forget(self, offset: int, length: int) -> None:
        """Tell the system that these bytes are not needed in its cache any more."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def check_unchanged(self) -> None:
        """`NotACheckpoint` when the file was written to since it was opened."""
        if _identity(self._descriptor) != self._identity:
            raise NotACheckpoint(f"{self.path}: changed while it was being converted; start again")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def set_direct(descriptor: int, direct: bool) -> bool:
    """Turn direct I/O of an open file on or off; False where it cannot be turned on."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag if direct else flags & ~flag)
    except OSError:  # a file system that has no direct I/O
        return False
    return direct


def _identity(descriptor: int) -> tuple[int, int, int, int]:
    """What changes when a file is written to."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def source_file(directory: Path, name: str) -> Path:
    """The real path of a file of the source; `NotACheckpoint` when it may not be read.

    A link must lead into the directory itself, or into the `blobs` of the Hugging Face cache that
    the directory is a snapshot of.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise NotACheckpoint(f"{directory}: {name[:80]!r} is no name of a file in this directory")
    home = directory.resolve()
    try:
        path = (home / name).resolve(strict=True)
    except (OSError, RuntimeError) as problem:
        raise NotACheckpoint(f"{directory / name}: missing; is the download complete?") from problem
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(path.is_relative_to(root) for root in allowed):
        raise NotACheckpoint(f"{directory / name}: a link that leads out of the checkpoint: {path}")
    if not path.is_file():
        raise NotACheckpoint(f"{directory / name}: not a file")
    return path


def read_small(directory: Path, name: str, bytes_max: int) -> bytes:
    """All of a small file of the source."""
    path = source_file(directory, name)
    with RangeFile(path) as file:
        if file.size > bytes_max:
            raise NotACheckpoint(
                f"{directory / name}: {file.size} bytes; at most {bytes_max} are accepted"
            )
        content = bytearray(file.size)
        file.read_into(memoryview(content), 0)
    return bytes(content)


def sha256_of(path: Path, progress: Progress) -> str:
    """SHA-256 of a file in hexadecimal, read in blocks."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with RangeFile(path) as file:
        for offset in range(0, file.size, BLOCK_BYTES):
            part = buffer[: min(BLOCK_BYTES, file.size - offset)]
            file.read_into(part, offset)
            digest.update(part)
            progress.advance(len(part))
    return digest.hexdigest()
