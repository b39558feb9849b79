"""Medians, spread and percentiles, each with the number of its values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
LEAST_VALUES = {"p99": 100, "p99.9": 1000}
"""The fewest values for which a percentile is given: at least one value lies beyond it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements of one thing; the samples stay, in the order in which they came."""

    median: float
    min: float
    max: float
    stdev: float
    """Standard deviation of the samples (n - 1 in the denominator); 0 for a single one."""
    samples: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one value or more."""
        assert values, "nothing was measured"
        return cls(
            median=statistics.median(values),
            min=min(values),
            max=max(values),
            stdev=statistics.stdev(values) if len(values) > 1 else 0.0,
            samples=tuple(values),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"samples": list(self.samples), "n": len(self.samples)}


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    """A `Spread` as plain values, or None where nothing was measured."""
    return Spread.of(values).to_json() if values else None


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """`n`, `min`, percentiles and `max`, interpolated; p99 from n = 100, p99.9 from n = 1000.

    Only `n` where there is none.
    """
    found: dict[str, float] = {"n": len(values)}
    if not len(values):
        return found
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    found["min"] = float(ordered[0])
    for name, percent in PERCENTILES.items():
        if len(ordered) >= LEAST_VALUES.get(name, 1):
            found[name] = float(np.percentile(ordered, percent))
    found["max"] = float(ordered[-1])
    assert all(math.isfinite(value) for value in found.values())
    return found
