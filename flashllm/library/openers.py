"""Processes that have files of a directory open, as far as this user may see that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flashllm.errors import CannotCreate


def refuse_open(directory: Path) -> None:
    """`CannotCreate` where another process has a model open, or is making it."""
    users = [f"process {number} ({name})" for number, name in find_openers(directory)]
    if users:
        raise CannotCreate(
            f"{directory}: is open in {', '.join(users)}; close it there first, and try again"
        )


def find_openers(directory: Path) -> Iterator[tuple[int, str]]:
    """(number, name) of each other process that has a file of the directory open."""
    import psutil  # slow to load, and most commands do without

    inside = f"{os.path.realpath(directory)}{os.sep}"
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            files = process.open_files()
            if any(file.path.startswith(inside) for file in files):
                yield process.pid, process.name()
        except (psutil.Error, OSError):  # another user's, or it has just ended
            continue
