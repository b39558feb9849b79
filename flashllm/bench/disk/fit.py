"""Fits t = a + S/B to measured points: the cost of a read, and the rate of its bytes.

Also judges whether a measurement can be trusted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from flashllm.hardware.curves import Fit, IoPoint
from flashllm.hardware.machine_profile import Profile

ERROR_MOST = 0.2
"""Largest error of a good fit: on a quiet machine the worst was 10 %, on a busy one 38 to 92 %."""
DIFFER_MOST = 1.5
"""Fastest over slowest pass, median of the points: quiet machine 1.3, busy ones 1.9 to 5."""
_FREE_FACTOR = 1000.0


def has_rate(fit: Fit, points: Sequence[IoPoint]) -> bool:
    """Whether the fit's B is a rate; False where the cost of bytes is negligible."""
    rates = [point.bytes_per_second for point in points if point.threads == fit.threads]
    return fit.bytes_per_second < _FREE_FACTOR / 2 * max(rates, default=math.inf)


def reason_to_doubt(profile: Profile) -> str:
    """Why the machine seems to have been busy, as a sentence; "" if it does not.

    A disk may not follow the law, but then all passes agree: a bad fit is trusted if passes agree.
    A single pass cannot agree.
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
    """One fit for each number of threads with two or more measured sizes."""
    fits = []
    for threads in sorted({point.threads for point in points}):
        chosen = [point for point in points if point.threads == threads]
        if len(chosen) >= 2:
            fits.append(_fit(threads, chosen))
    return tuple(fits)


def _fit(threads: int, points: Sequence[IoPoint]) -> Fit:
    """Least squares of the relative errors, so that all sizes count alike.

    `a` and 1/B are at least 0: a term that would be negative is set to 0.
    """
    sizes = np.array([point.read_bytes for point in points], dtype=np.float64)
    times_ns = sizes * 1e9 / np.array([point.bytes_per_second for point in points])
    terms = np.stack([np.ones_like(sizes), sizes], axis=1) / times_ns[:, None]
    per_read_ns, ns_a_byte = np.linalg.lstsq(terms, np.ones_like(sizes), rcond=None)[0]
    if per_read_ns < 0:
        per_read_ns, ns_a_byte = 0.0, _alone(terms[:, 1])
    elif ns_a_byte <= 0:
        # Bytes without cost have no rate; one far beyond the fastest point stands for that.
        ns_a_byte = float(np.min(times_ns / sizes)) / _FREE_FACTOR
        per_read_ns = _alone(terms[:, 0])
    found_ns = per_read_ns + sizes * ns_a_byte
    error = float(np.max(np.abs(found_ns / times_ns - 1)))
    return Fit(threads, float(per_read_ns), 1e9 / float(ns_a_byte), error)


def _alone(terms: np.ndarray) -> float:
    """The factor that brings one column of terms closest to 1."""
    return float(terms.sum() / (terms @ terms))
