"""The page cache of files: dropped before a measurement, and looked at to prove it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from flashllm.bench.page_cache import drop_pages, resident_bytes

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PAGE_CACHE_ONLY = "1"
_SHARE_LEFT = 0.001


def drop_page_cache(files: Sequence[Path]) -> None:
    """Ask the kernel to forget the files' pages; where it keeps them, all pages, as root may."""
    for path in files:
        drop_pages(path)
    if (cached_share(files) or 0.0) > _SHARE_LEFT:
        with contextlib.suppress(OSError):
            _DROP_CACHES.write_text(_PAGE_CACHE_ONLY, "ascii")


def cached_share(files: Sequence[Path]) -> float | None:
    """The share of the files' bytes that is in the page cache; None if unknown."""
    cached_bytes = total_bytes = 0
    for path in files:
        file_bytes = path.stat().st_size
        if not file_bytes:
            continue
        found = resident_bytes(path, file_bytes)
        if found is None:
            return None
        cached_bytes += found
        total_bytes += file_bytes
    return cached_bytes / total_bytes if total_bytes else 0.0
