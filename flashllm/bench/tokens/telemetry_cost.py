"""What telemetry costs: the same tokens with and without it, interleaved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from flashllm.bench.tokens.samples import COLD, PLAIN, RunSample

TARGET_SHARE = 0.01
_DEVIATIONS = 1.96  # 95 % of a normal distribution


def telemetry_cost(runs: Sequence[RunSample]) -> dict[str, Any] | None:
    """Medians of both, their difference, and that of the pairs; None without pairs.

    A pair is the same token of two consecutive runs, so both do the same work. The interval
    contains the median of the pairs' differences with 95 % probability if tokens are independent;
    drift within a run makes the true one wider.
    """
    warm = [run for run in runs if run.complete and run.kind != COLD]
    couples = [
        (one, other) if other.kind == PLAIN else (other, one)
        for one, other in zip(warm[::2], warm[1::2], strict=False)
        if (one.kind == PLAIN) != (other.kind == PLAIN)
    ]
    measured = [token.wall_ns for on, _ in couples for token in on.tokens]
    plain = [token.wall_ns for _, off in couples for token in off.tokens]
    if not measured or not plain:
        return None
    differences = [
        with_ns.wall_ns - without_ns.wall_ns
        for on, off in couples
        for with_ns, without_ns in zip(on.tokens, off.tokens, strict=False)
    ]
    plain_ns = statistics.median(plain)
    low_ns, high_ns = median_interval(differences)
    share = statistics.median(differences) / plain_ns
    return {
        "pairs": len(differences),
        "with_median_ns": statistics.median(measured),
        "without_median_ns": plain_ns,
        "medians_difference_share": statistics.median(measured) / plain_ns - 1,
        "share": share,
        "share_low": low_ns / plain_ns,
        "share_high": high_ns / plain_ns,
        "target_share": TARGET_SHARE,
        "within_target": share <= TARGET_SHARE,
    }


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % confidence interval of the median, from ranks; distribution-free."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    half = _DEVIATIONS * math.sqrt(len(ordered)) / 2
    low = max(math.floor(len(ordered) / 2 - half), 0)
    high = min(math.ceil(len(ordered) / 2 + half), len(ordered) - 1)
    return float(ordered[low]), float(ordered[high])


def same_tokens(runs: Sequence[RunSample]) -> bool:
    """Whether all runs sampled the same tokens, incomplete runs as far as they went."""
    longest = max((run.token_ids for run in runs), key=len, default=())
    return all(
        run.token_ids == longest[: len(run.token_ids)]
        and (not run.complete or run.token_ids == longest)
        for run in runs
    )
