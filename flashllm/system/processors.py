"""How many threads compute: one for each core that this process may use."""

from __future__ import annotations

import os

import psutil

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Says to programs how many threads are to compute."""


def usable_processors() -> int | None:
    """Logical processors that this process may run on; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def compute_threads() -> int:
    """As many as `OMP_NUM_THREADS` says, else as there are cores for this process.

    Two logical processors of one core share what multiplies, so they count once.
    """
    told = os.environ.get(THREADS_VARIABLE, "").partition(",")[0].strip()
    if told.isascii() and told.isdecimal() and int(told) > 0:
        return int(told)
    processors = usable_processors() or os.cpu_count() or 1
    return min(processors, psutil.cpu_count(logical=False) or processors)
