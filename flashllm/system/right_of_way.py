"""Who has the disk and the processors: an engine that answers, before a quick profile.

Both are processes of their own, so a file lock tells one about the other. Whoever measures makes
the file; an engine only opens it, so nothing is written for an answer, and where nobody has ever
measured an answer pays for one failed `open`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from flashllm.system.paths import cache_dir

TRIES = 20
TRY_SECONDS = 0.001
"""Whoever measures holds the lock for microseconds, to see whether an engine does."""


def lock_file() -> Path:
    """The file that engines lock while they answer."""
    return cache_dir() / "profiles" / "answering.lock"


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """Takes the right of way for the block; several engines may have it at once."""
    try:
        descriptor = os.open(lock_file(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # nobody measures, or not here
        yield
        return
    try:
        for _ in range(TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(TRY_SECONDS)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(descriptor)


class RightOfWay:
    """Sees whether an engine is answering. Close it, or use it as a context manager."""

    def __init__(self) -> None:
        """`OSError` where the file cannot be made."""
        path = lock_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def is_taken(self) -> bool:
        """Whether an engine has it now; takes some microseconds."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks: nobody can tell
            return False
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
