"""t = a + S/B through measured points: what a read costs beside its bytes, and its bytes' rate.

And whether what was measured can be believed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from flashllm.hardware.curves import Fit, IoPoint
from flashllm.hardware.machine_profile import Profile

ERROR_MOST = 0.2
"""Of a fit on a quiet machine: there the worst was 10 % off, on a busy one 38 to 92 %."""
DIFFER_MOST = 1.5
"""A point's fastest pass over its slowest, the median of the points: there 1.3, here 1.9 to 5."""
_FREE_FACTOR = 1000.0


def has_rate(fit: Fit, points: Sequence[IoPoint]) -> bool:
    """Whether the fit's B is a rate: False where bytes cost nothing beside the reads."""
    rates = [point.bytes_per_second for point in points if point.threads == fit.threads]
    return fit.bytes_per_second < _FREE_FACTOR / 2 * max(rates, default=math.inf)


def reason_to_doubt(profile: Profile) -> str:
    """What says that the machine was busy with something else, in words; "" where nothing does.

    A disk may break the law by itself, but then each pass finds the same: what fits badly is
    believed where the passes agree. One pass alone agrees with nothing.
    """
    worst = max(profile.fits, key=lambda fit: fit.error, default=None)
    if worst is None or worst.error <= ERROR_MOST:
        return ""
    samples = [point.samples for point in profile.points]
    differ = statistics.median(max(passes) / min(passes) for passes in samples)
    is_repeated = min(map(len, samples)) > 1
    if is_repeated and differ <= DIFFER_MOST:
        return ""
    return (
        f"the fit of {worst.threads} threads is {worst.error:.0%} off from what was measured"
        f" (on a quiet machine {ERROR_MOST:.0%} at most), and "
        + (f"passes differ {differ:.1f}-fold" if is_repeated else "one pass does not say why")
    )


def fit_points(points: Sequence[IoPoint]) -> tuple[Fit, ...]:
    """One fit for each number of threads of which two sizes or more were measured."""
    fits = []
    for threads in sorted({point.threads for point in points}):
        chosen = [point for point in points if point.threads == threads]
        if len(chosen) >= 2:
            fits.append(_fit(threads, chosen))
    return tuple(fits)


def _fit(threads: int, points: Sequence[IoPoint]) -> Fit:
    """Least squares of the relative errors: each size counts alike, be it short or long.

    Neither `a` nor 1/B is below zero: where the best line would have it so, it is zero there.
    """
    sizes = np.array([point.read_bytes for point in points], dtype=np.float64)
    times_ns = sizes * 1e9 / np.array([point.bytes_per_second for point in points])
    terms = np.stack([np.ones_like(sizes), sizes], axis=1) / times_ns[:, None]
    per_read_ns, ns_a_byte = np.linalg.lstsq(terms, np.ones_like(sizes), rcond=None)[0]
    if per_read_ns < 0:
        per_read_ns, ns_a_byte = 0.0, _alone(terms[:, 1])
    elif ns_a_byte <= 0:
        # Bytes that cost nothing have no rate; one far beyond the fastest point stands for that.
        ns_a_byte = float(np.min(times_ns / sizes)) / _FREE_FACTOR
        per_read_ns = _alone(terms[:, 0])
    found_ns = per_read_ns + sizes * ns_a_byte
    error = float(np.max(np.abs(found_ns / times_ns - 1)))
    return Fit(threads, float(per_read_ns), 1e9 / float(ns_a_byte), error)


def _alone(terms: np.ndarray) -> float:
    """The factor that brings one column of terms nearest to ones."""
    return float(terms.sum() / (terms @ terms))
