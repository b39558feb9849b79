"""How many threads compute: one for each core that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Says to programs how many threads are to compute."""
_TOPOLOGY = Path("/sys/devices/system/cpu")


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
    if hasattr(os, "sched_getaffinity"):
        usable = os.sched_getaffinity(0)
        return count_cores(usable) or len(usable)
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def count_cores(processors: Iterable[int], topology: Path = _TOPOLOGY) -> int | None:
    """Cores that these logical processors belong to; None where the system does not say."""
    try:
        siblings = {
            (topology / f"cpu{number}" / "topology" / "thread_siblings_list").read_text()
            for number in processors
        }
    except OSError:
        return None
    return len(siblings)
