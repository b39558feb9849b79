"""Files that are there whole, or as they were before, whatever interrupts the writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_NAME_CHARACTERS = 40
"""Of the file's own name in the temporary one, which has to be a name that a folder takes."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a new name beside `path`; what is written there takes its place at the end.

    Where the block raises, the temporary file is removed and `path` is left as it was.
    """
    # Of its own for each writer: two of them would finish each other's halves.
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
