"""Pages of libraries that only their loading needed, given back to the system.

Importing numpy and tokenizers touches 10 MiB of code and tables that computing never looks at
again, and torch, where a device is used, 70 MiB. They are clean pages of files: the system would
drop them where memory is short, but until then they count as resident, in the ceiling and in a
container. What is needed again comes back from the page cache.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

SMAPS = Path("/proc/self/smaps")
LEAST_BYTES = 256 << 10
"""Less is not worth a call."""
_MADV_DONTNEED = 4  # the same on every architecture of Linux that Python runs on but Alpha


def drop_clean_pages(smaps: Path = SMAPS) -> int:
    """Unmaps clean pages of files that nobody writes to; returns the bytes that were resident.

    Nothing is lost: whoever looks at them finds them again. Without /proc there is nothing to do.
    """
    madvise = _madvise()
    if madvise is None:
        return 0
    dropped = 0
    for address, nbytes, resident_bytes in list(clean_mappings(smaps)):
        if madvise(address, nbytes, _MADV_DONTNEED) == 0:
            dropped += resident_bytes
    return dropped


def clean_mappings(smaps: Path = SMAPS) -> Iterator[tuple[int, int, int]]:
    """(address, bytes, resident bytes) of mappings of files without a page of this process's own.

    A page that was written to would be lost: of code that was relocated, or has a breakpoint. The
    kernel's numbers are those of Documentation/filesystems/proc.rst, in KiB.
    """
    address = end = resident_bytes = 0
    is_candidate = False
    with contextlib.suppress(OSError), open(smaps, "rb") as file:
        for line in file:
            key, _, value = line.partition(b" ")
            if not key.endswith(b":"):  # "start-end rwxp offset device inode path"
                fields = line.split(None, 5)
                is_candidate = len(fields) == 6 and fields[5][:1] == b"/" and b"w" not in fields[1]
                address, end = (int(number, 16) for number in key.split(b"-"))
            elif not is_candidate:
                continue
            elif key == b"Rss:":
                resident_bytes = _bytes(value)
                is_candidate = resident_bytes >= LEAST_BYTES
            elif key in (b"Private_Dirty:", b"Anonymous:", b"Locked:"):
                is_candidate = not _bytes(value)
            elif key == b"VmFlags:":  # the last line of a mapping
                yield address, end - address, resident_bytes


def _bytes(kib: bytes) -> int:
    return int(kib.split()[0]) << 10


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """madvise(2); None where there is no such memory to be described."""
    if not SMAPS.exists():
        return None
    import ctypes  # not at each start of a command

    try:
        madvise: Callable[[int, int, int], int] = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]  # type: ignore[attr-defined]
    return madvise
