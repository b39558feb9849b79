"""The parts of a profile: points, fits, the curve through them, and the machine's other rates.

Between measured sizes, the time of a read is interpolated linearly, as in t = a + S/B; outside, the
fit continues from the last point.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IoPoint:
    """One read size at one number of threads."""

    read_bytes: int
    threads: int
    bytes_per_second: float
    """The median of the repetitions."""
    samples: tuple[float, ...]
    """Bytes per second of each repetition, in order: a device that gets hot shows here."""
    latency_ns: dict[str, int]
    """Latency of a read: "mean", "p50", "p90", "p99", "p99.9", "max", from all repetitions."""


@dataclass(frozen=True, slots=True)
class Fit:
    """t = a + S/B at one number of threads; `a` is per read, amortised over the threads."""

    threads: int
    per_read_ns: float
    bytes_per_second: float
    error: float
    """The largest relative error of t over the points."""

    def read_ns(self, read_bytes: float) -> float:
        """Wall time of a read when many are done."""
        return self.per_read_ns + read_bytes * 1e9 / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Rates of this machine's memory and our kernels, and the overheads of a token."""

    dram_bytes_per_second: dict[int, float]
    """Plain streaming reads, by threads."""
    kernel_bytes_per_second: dict[str, float]
    """Matrix times vector at all threads, the matrix past the cache, by encoding."""
    rows_bytes_per_second: dict[str, float]
    """dot_rows and weighted_sum_rows over scattered rows, by encoding."""
    layer_overhead_ns: float
    """Overhead of a decoder layer, measured with next to no bytes."""
    token_overhead_ns: float
    """Overhead of the rest of a token, measured with next to no bytes."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a read against its size, at one number of threads."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    fit: Fit | None

    @classmethod
    def of(cls, points: Sequence[IoPoint], fit: Fit | None) -> Curve:
        """The curve through points of one number of threads."""
        ordered = sorted(points, key=lambda point: point.read_bytes)
        return cls(
            tuple(point.read_bytes for point in ordered),
            tuple(point.read_bytes / point.bytes_per_second for point in ordered),
            fit,
        )

    def throughput(self, size: float) -> float:
        """Bytes per second; time is linear between points, and follows the fit beyond them."""
        above = bisect.bisect_left(self.sizes, size)
        if above in (0, len(self.sizes)):
            return size / self._beyond(size, -1 if above else 0)
        small, large = self.sizes[above - 1], self.sizes[above]
        share = (size - small) / (large - small)
        rise = self.seconds[above] - self.seconds[above - 1]
        return size / (self.seconds[above - 1] + share * rise)

    def _beyond(self, size: float, edge: int) -> float:
        """Seconds of a read outside the points; without a fit, the same as at the edge.

        The fit is scaled to meet the point at the edge, so that there is no jump.
        """
        if self.fit is None or self.fit.read_ns(self.sizes[edge]) <= 0:
            grown = size / self.sizes[edge] if edge else 1.0
            return self.seconds[edge] * grown
        scale = self.fit.read_ns(size) / self.fit.read_ns(self.sizes[edge])
        return self.seconds[edge] * scale
