"""A folder in memory where targets put the files that a parser reads."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def folder(name: str) -> Path:
    """An empty folder of this process, removed at its end."""
    shared = Path("/dev/shm")
    home = tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=shared if shared.is_dir() else None)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return Path(home)
