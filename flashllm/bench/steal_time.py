"""Steal time: how much of the processors' time the hypervisor gave to other machines.

A virtual machine without its processors measures its neighbours, and only the steal time of
`/proc/stat` shows that. Runs are not discarded for it, but report it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STOLEN_MOST = 0.05
"""A run that lost a larger share is reported."""
_STAT = Path("/proc/stat")
_STEAL, _KINDS = 7, 8  # user nice system idle iowait irq softirq steal; a guest's are user's too


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Ticks of all processors since the system began; zeros if it does not tell."""

    ticks: int = 0
    stolen_ticks: int = 0

    @classmethod
    def now(cls) -> ProcessorTime:
        """As it is now."""
        try:
            name, *fields = _STAT.read_text("ascii").split("\n", 1)[0].split()
            ticks = [int(field) for field in fields[:_KINDS]]
        except (OSError, ValueError):
            return cls()
        if name != "cpu" or len(ticks) < _KINDS:
            return cls()
        return cls(sum(ticks), ticks[_STEAL])

    def stolen_share_since(self, earlier: ProcessorTime) -> float | None:
        """The share of all processors' time, 0 to 1, that was stolen since an earlier moment.

        None if the system does not tell, and for less than a tick (usually 10 ms).
        """
        ticks = self.ticks - earlier.ticks
        if ticks <= 0 or not earlier.ticks:
            return None
        # Counters may decrease when the machine is moved to another host.
        return min(max(self.stolen_ticks - earlier.stolen_ticks, 0) / ticks, 1.0)


def most_stolen(shares: Sequence[float | None]) -> float | None:
    """The largest share; None if none is known."""
    return max((share for share in shares if share is not None), default=None)


def format_steal_share(share: float | None) -> str:
    """A share for people."""
    return "unknown" if share is None else f"{share:.1%}"


def stolen_warning(shares: Sequence[float | None]) -> str:
    """A sentence about runs that lost more than 5 %, from their shares; "" if there are none."""
    lost = [share for share in shares if share is not None and share > STOLEN_MOST]
    if not lost:
        return ""
    return (
        f"{len(lost)} of {len(shares)} runs lost more than {STOLEN_MOST:.0%} of the processors'"
        f" time to others on the same host ({max(lost):.0%} at most); they count as the others do,"
        " so measure again when it is quiet"
    )
