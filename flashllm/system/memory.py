"""Resident memory of this process, as the system counts it."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

PAGE_BYTES = resource.getpagesize()


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory of this process, or of another one, now; 0 for one that has gone."""
    statm = _statm(pid)
    return _rss_by_psutil(pid) if statm is None else int(statm[1]) * PAGE_BYTES


def own_bytes() -> int:
    """Resident memory of this process without pages of files, where the system tells them apart."""
    statm = _statm(None)
    return _rss_by_psutil(None) if statm is None else (int(statm[1]) - int(statm[2])) * PAGE_BYTES


def _statm(pid: int | None) -> list[bytes] | None:
    """Pages of a process: all, resident, of these in files ... (proc(5)); None without /proc."""
    try:
        # Read after every token: this takes a third of psutil's time.
        file = os.open(f"/proc/{pid or 'self'}/statm", os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(file, 128).split()
    finally:
        os.close(file)


def _rss_by_psutil(pid: int | None) -> int:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def rss_peak_bytes() -> int:
    """The most resident memory that this process ever had."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
