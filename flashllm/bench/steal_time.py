"""How much of the processors' time the hypervisor gave to others: whether there was a machine.

A virtual machine whose processors are taken away measures the neighbours, and nothing in its own
counts shows it but the steal time of `/proc/stat`. Runs are not thrown away for it: they say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STOLEN_MOST = 0.05
"""A run that lost a larger share is spoken of."""
_STAT = Path("/proc/stat")
_STEAL, _KINDS = 7, 8  # user nice system idle iowait irq softirq steal; a guest's are user's too


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Of all processors since the system began, in its ticks; zeros where it does not tell."""

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
        """The part of all processors' time, 0 to 1, that was taken away since an earlier moment.

        None where the system does not tell, and for less than a tick (10 ms, usually).
        """
        ticks = self.ticks - earlier.ticks
        if ticks <= 0 or not earlier.ticks:
            return None
        # Counters of a machine that was moved to another host may go back.
        return min(max(self.stolen_ticks - earlier.stolen_ticks, 0) / ticks, 1.0)


def most_stolen(shares: Sequence[float | None]) -> float | None:
    """The largest share; None where none is known."""
    return max((share for share in shares if share is not None), default=None)


def format_steal_share(share: float | None) -> str:
    """A share for people."""
    return "unknown" if share is None else f"{share:.1%}"


def stolen_warning(shares: Sequence[float | None]) -> str:
    """A sentence on the runs, by their shares, that lost more than 5 %; "" where none did."""
    lost = [share for share in shares if share is not None and share > STOLEN_MOST]
    if not lost:
        return ""
    return (
        f"{len(lost)} of {len(shares)} runs lost more than {STOLEN_MOST:.0%} of the processors'"
        f" time to others on the same host ({max(lost):.0%} at most); they count as the others do,"
        " so measure again when it is quiet"
    )
