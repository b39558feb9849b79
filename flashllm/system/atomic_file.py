"""Atomic writes: a file is complete or as it was before, whatever interrupts the writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_NAME_CHARACTERS = 40
"""Characters of the file's name that its temporary name contains, so that it is not too long."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, which replaces `path` at the end.

    If the block raises, the temporary file is removed and `path` is left as it was.
    """
    # A name of its own for each writer: two writers would mix their halves.
    part = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{os.urandom(4).hex()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, mode: int = 0o666, durable: bool = False) -> None:
    """Writes a file whole or not at all; `mode` is what the umask is taken from.

    `durable`: once this returns, the content outlives a loss of power.
    """
    with replacing(path) as part:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(descriptor)


def sync(path: Path) -> None:
    """Make a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
