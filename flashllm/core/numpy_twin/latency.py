"""Latencies of reads, from the counts that a reader keeps: a log-linear histogram, as fio's.

64 bins for each power of two: up to 127 ns a bin is one nanosecond; beyond, the middle of a bin is
wrong by less than 0.78 %. Histograms of several readers are added, and what happened between two
moments is a difference; percentiles are taken from the result and never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP_BITS = 6
GROUPS = 29
BINS = GROUPS << GROUP_BITS
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_LINEAR = 2 << GROUP_BITS  # bins of one nanosecond


def _first_ns() -> NDArray[np.int64]:
    """The least time of each bin, and one more where the last would end. [BINS + 1]."""
    bins = np.arange(BINS + 1)
    shift = np.maximum(bins >> GROUP_BITS, 1) - 1
    within = (1 << GROUP_BITS) + bins % (1 << GROUP_BITS)
    return np.where(bins < _LINEAR, bins, within << shift)


FIRST_NS = _first_ns()
# Of a bin that is one nanosecond wide this is that nanosecond, exactly.
MIDDLE_NS = (FIRST_NS[:-1] + FIRST_NS[1:] - 1) / 2


def bin_of(ns: int) -> int:
    """The bin that a time is counted in; times past the last bin are counted in it."""
    if ns < _LINEAR:
        return max(ns, 0)
    shift = ns.bit_length() - 1 - GROUP_BITS
    return min((shift << GROUP_BITS) + (ns >> shift), BINS - 1)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Counts of reads by how long they took; add and subtract them."""

    counts: NDArray[np.uint64]
    """[BINS]; what `Reader.latency_histogram` gives."""

    def __post_init__(self) -> None:
        if self.counts.shape != (BINS,):
            raise ValueError(f"{self.counts.shape} counts; expected {BINS}")

    @classmethod
    def merge(cls, parts: Iterable[Latencies]) -> Latencies:
        """All of them together; of none, nothing counted."""
        total = np.zeros(BINS, np.uint64)
        for part in parts:
            total += part.counts
        return cls(total)

    def __add__(self, other: Latencies) -> Latencies:
        return Latencies(self.counts + other.counts)

    def __sub__(self, earlier: Latencies) -> Latencies:
        """What was counted since `earlier`, of the same reader."""
        if np.any(earlier.counts > self.counts):
            raise ValueError("the histogram to subtract is not an earlier one of this reader")
        return Latencies(self.counts - earlier.counts)

    @property
    def n(self) -> int:
        """Reads counted."""
        return int(self.counts.sum())

    @property
    def mean_ns(self) -> float:
        """Mean from the middles of the bins; 0 where nothing was counted."""
        return float(self.counts @ MIDDLE_NS) / self.n if self.n else 0.0

    @property
    def max_ns(self) -> int:
        """The end of the last bin that counted anything; 0 where none did."""
        used = np.flatnonzero(self.counts)
        return int(FIRST_NS[used[-1] + 1] - 1) if len(used) else 0

    def percentile_ns(self, percent: float) -> float:
        """The time that this share of the reads took at most, from the middle of its bin.

        The smallest recorded time with `percent` % of the reads at or below it (nearest rank).
        """
        if not 0.0 < percent <= 100.0:
            raise ValueError(f"percentile {percent}; expected more than 0, and at most 100")
        if self.n == 0:
            return 0.0
        # Rounded first: 99.9 % of 1000 is 999 reads, whatever binary fractions make of it.
        rank = max(1, int(np.ceil(round(self.n * percent / 100, 6))))
        return float(MIDDLE_NS[np.searchsorted(np.cumsum(self.counts), rank)])

    def summary(self) -> dict[str, int]:
        """n, and nanoseconds: mean, p50, p90, p95, p99, p99.9, max."""
        named = {f"p{percent:g}": round(self.percentile_ns(percent)) for percent in PERCENTILES}
        return {"n": self.n, "mean": round(self.mean_ns), **named, "max": self.max_ns}

    def to_json(self) -> dict[str, Any]:
        """The summary, and the bins that are not empty as [least time, count]."""
        used = np.flatnonzero(self.counts)
        bins = [[int(FIRST_NS[i]), int(self.counts[i])] for i in used]
        return {**self.summary(), "bins_ns": bins}
