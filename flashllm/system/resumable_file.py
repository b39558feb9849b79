"""Writes files of work that continues after an error, and says so."""

from __future__ import annotations

import errno
from pathlib import Path

from flashllm.errors import CannotCreate, NotEnoughSpace
from flashllm.system.atomic_file import write_whole


def write_file(path: Path, content: bytes) -> None:
    """Writes a file atomically and durably."""
    try:
        write_whole(path, content, durable=True)
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> CannotCreate:
    """The error of ours for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotEnoughSpace(
            f"{path}: the disk filled up; free some and run the same command again, it continues "
            "where it stopped"
        )
    return CannotCreate(f"{path}: cannot write here: {error.strerror}")
