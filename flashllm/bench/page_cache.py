"""How much of a file is in the page cache, and how much this process read from devices.

Linux tells both; on other systems the answer is None, and nothing is proven.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

_WINDOW_BYTES = 1 << 30  # of a file that is mapped at a time
_PROCESS_IO = Path("/proc/self/io")


def drop_pages(path: Path) -> None:
    """Asks the system to drop a file's pages; pages that a process maps stay."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # pages that are not written yet cannot be dropped
            os.fsync(file)
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def resident_bytes(path: Path, file_bytes: int) -> int | None:
    """Bytes of a file that are in the page cache, or None if the system does not tell.

    Linux (mincore) tells owners and those who may write the file; to others it reports all pages.
    """
    if not _may_ask(path) or not file_bytes:
        return None
    mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if mincore is None:
        return None
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    pages = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start in range(0, file_bytes, _WINDOW_BYTES):
            window = mmap.mmap(
                file, min(_WINDOW_BYTES, file_bytes - start), prot=mmap.PROT_READ, offset=start
            )
            found = _resident_pages(mincore, window)
            if found is None:
                return None
            pages += found
    except OSError:
        return None
    finally:
        os.close(file)
    return min(pages * mmap.PAGESIZE, file_bytes)


def _may_ask(path: Path) -> bool:
    return os.path.exists("/proc/self") and (
        os.access(path, os.W_OK) or path.stat().st_uid == os.geteuid()
    )


def _resident_pages(mincore: ctypes._NamedFuncPointer, window: mmap.mmap) -> int | None:
    """Pages of a mapping that are in memory; mapping a file loads none of them."""
    memory = np.frombuffer(window, np.uint8)
    states = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)
    if mincore(memory.ctypes.data, len(memory), states.ctypes.data) != 0:
        return None
    return int(np.count_nonzero(states & 1))


def device_bytes() -> int | None:
    """Bytes that this process has read from devices since it began, or None."""
    try:
        for line in _PROCESS_IO.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "read_bytes":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
