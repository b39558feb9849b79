"""What a soak found: the peak against the ceiling, and what grew after the beginning."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.soak.processes import APPLICATION, ENGINE, Look, ProcessUse

MIB = 1 << 20
BEGINNING_SECONDS_MAX = 600.0
BEGINNING_SHARE = 1 / 6
JUDGED_SECONDS_MIN = 600.0
"""A shorter soak is all beginning: its growth is told, and not judged."""
LOSING_SHARE = 1 / 3
"""Of a soak, in which engines are killed: the last one lives, and what it grows by can be seen."""
GROWTH_MIB_MAX = 1.0
COUNT_GROWTH_SHORT_MAX = 8
"""Of descriptors or threads in a short soak, in which libraries begin threads that they keep."""
HIGH = 0.9
"""Told, not judged: a long prompt takes some MiB while it is read, and how often one comes is
chance."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure, the limit that it has, and whether that holds."""

    name: str
    before: str
    after: str
    found: float
    unit: str
    limit: float | None
    """None where it is only told."""

    @property
    def holds(self) -> bool:
        """Whether the limit holds, or there is none."""
        return self.limit is None or self.found <= self.limit

    def row(self) -> list[str]:
        """For a table."""
        limit = "" if self.limit is None else f"{self.limit:g} {self.unit}".strip()
        found = f"{self.found:.2f}".rstrip("0").rstrip(".")
        return [self.name, self.before, self.after, f"{found} {self.unit}".strip(), limit,
                "" if self.limit is None else "yes" if self.holds else "NO"]  # fmt: skip


def beginning_seconds(seconds: float) -> float:
    """How much of a soak is its beginning, after which nothing should grow."""
    return min(BEGINNING_SECONDS_MAX, seconds * BEGINNING_SHARE)


def judge(looks: Sequence[Look], ceiling_bytes: int, seconds: float) -> list[Finding]:
    """All findings of a soak of that many seconds."""
    peak = max((look.rss_bytes for look in looks), default=0)
    findings = [
        Finding("RSS of all processes, peak", "", "", peak / MIB, "MiB", ceiling_bytes / MIB)
    ]
    size = beginning_seconds(seconds)
    is_judged = seconds >= JUDGED_SECONDS_MIN
    for role in (APPLICATION, ENGINE):
        life = _last_life(looks, role)
        end = life[-1][0] if life else 0.0
        windows = (
            [use for age, use in life if size <= age < 2 * size],
            [use for age, use in life if end - size <= age],
        )
        rss = [[use.rss_bytes / MIB for use in window] for window in windows]
        limit = GROWTH_MIB_MAX if is_judged else None
        before, after = map(_median, rss)
        findings.append(_growth(f"RSS of the {role}, median", before, after, "MiB", limit))
        before, after = map(_high, rss)
        findings.append(_growth(f"RSS of the {role}, nine tenths", before, after, "MiB", None))
        for name, value in (("descriptors", _descriptors), ("threads", _threads)):
            before, after = (_median([value(use) for use in window]) for window in windows)
            limit = 0 if is_judged else COUNT_GROWTH_SHORT_MAX
            findings.append(_growth(f"{name} of the {role}", before, after, "", limit))
    return findings


def _last_life(looks: Sequence[Look], role: str) -> list[tuple[float, ProcessUse]]:
    """What the last process of a role took, by its age in seconds.

    An engine that came after another was lost has no growth beside that one: how much it takes at
    its most depends on the prompts that it gets.
    """
    uses = [(look.seconds, use) for look in looks if (use := look.of(role)) is not None]
    own = [(seconds, use) for seconds, use in uses if use.pid == uses[-1][1].pid]
    return [(seconds - own[0][0], use) for seconds, use in own]


def _growth(name: str, before: float, after: float, unit: str, limit: float | None) -> Finding:
    return Finding(name, f"{before:.5g}", f"{after:.5g}", after - before, unit, limit)


def _descriptors(use: ProcessUse) -> float:
    return use.descriptors


def _threads(use: ProcessUse) -> float:
    return use.threads


def _high(values: list[float]) -> float:
    return sorted(values)[int(HIGH * (len(values) - 1))] if values else 0.0


def _median(values: list[float]) -> float:
    return statistics.median_low(values) if values else 0.0
