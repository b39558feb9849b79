"""The page cache of files: dropped before a measurement, and looked at to prove it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PAGE_CACHE_ONLY = "1"
_SHARE_LEFT = 0.001


def drop_page_cache(files: Sequence[Path]) -> None:
    """Ask the kernel to forget the files' pages; where it keeps them, all pages, as root may."""
    for path in files:
        _drop_file(path)
    if (cached_share(files) or 0.0) > _SHARE_LEFT:
        with contextlib.suppress(OSError):
            _DROP_CACHES.write_text(_PAGE_CACHE_ONLY, "ascii")


def _drop_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)  # pages not yet written are not dropped
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached_share(files: Sequence[Path]) -> float | None:
    """The part of the files' pages that lies in the page cache; None where nobody tells."""
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    cached = total = 0
    for path in files:
        if not path.stat().st_size:
            continue
        content = np.memmap(path, np.uint8, "r")
        pages = -(-content.size // mmap.PAGESIZE)
        flags = np.zeros(pages, np.uint8)
        address, size = ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(content.size)
        if mincore(address, size, ctypes.c_void_p(flags.ctypes.data)):
            return None
        cached += int((flags & 1).sum())
        total += pages
    return cached / total if total else 0.0
