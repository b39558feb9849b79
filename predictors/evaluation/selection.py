"""Errors of a selector: false negatives, false positives, and the size of what was missed.

False negatives are counted per neuron that was active, false positives per neuron that was not
(the only reading of the paper's 5 and 7 % that gives the load it reports).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Margins are above zero and of any scale: sixteen places to each doubling, from 2**-30 to 2**18.
PLACES_PER_DOUBLING = 16
LOWEST_POWER = -30
HIGHEST_POWER = 18
PLACES = (HIGHEST_POWER - LOWEST_POWER) * PLACES_PER_DOUBLING
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class MarginHistogram:
    """A histogram of positive margins in constant memory; quantiles to within 4 %."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(PLACES, np.int64)
        self.total = 0.0

    def add(self, margins: NDArray[np.float32]) -> None:
        """Count margins, all above zero."""
        places = np.floor((np.log2(margins) - LOWEST_POWER) * PLACES_PER_DOUBLING)
        places = np.clip(places, 0, PLACES - 1).astype(np.int64)
        self.counts += np.bincount(places, minlength=PLACES)
        self.total += float(margins.sum(dtype=np.float64))

    def quantile(self, share: float) -> float | None:
        """The margin that `share` of them are below; None where there are none."""
        count = int(self.counts.sum())
        if not count:
            return None
        running = np.cumsum(self.counts)
        place = int(np.searchsorted(running, share * count))
        within = (share * count - (running[place] - self.counts[place])) / self.counts[place]
        return float(2.0 ** (LOWEST_POWER + (place + within) / PLACES_PER_DOUBLING))

    def to_json(self) -> dict[str, Any]:
        """Count, mean, quantiles, and the counts between the first and last place in use."""
        used = np.flatnonzero(self.counts)
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        count = int(self.counts.sum())
        return {
            "count": count,
            "mean": self.total / count if count else None,
            "quantiles": {f"q{100 * share:.0f}": self.quantile(share) for share in QUANTILES},
            "lowest_log2": LOWEST_POWER + first / PLACES_PER_DOUBLING,
            "step_log2": 1 / PLACES_PER_DOUBLING,
            "counts": self.counts[first:end].tolist(),
        }


class SelectionMeter:
    """Counts of one layer: selected against active neurons."""

    def __init__(self) -> None:
        self.tokens = self.neurons = self.active = self.chosen = self.missed = 0
        self.margins = MarginHistogram()
        """Of all active neurons."""
        self.missed_margins = MarginHistogram()

    def add(self, margins: NDArray[np.float32], chosen: NDArray[np.bool_] | None) -> None:
        """Count some tokens, both [tokens, neurons]; None if all neurons are read."""
        active = margins > 0
        self.tokens += len(margins)
        self.neurons += margins.size
        self.active += int(np.count_nonzero(active))
        self.margins.add(margins[active])
        if chosen is not None:
            missed = active & ~chosen
            self.chosen += int(np.count_nonzero(chosen))
            self.missed += int(np.count_nonzero(missed))
            self.missed_margins.add(margins[missed])

    def to_json(self, has_selector: bool) -> dict[str, Any]:
        """Shares; `missed_mass` is the share of all margins that belongs to missed neurons."""
        found: dict[str, Any] = {"active": self.active / max(1, self.neurons)}
        if has_selector:
            inactive = self.neurons - self.active
            wasted = self.chosen - (self.active - self.missed)
            found |= {
                "false_negatives": self.missed / max(1, self.active),
                "false_positives": wasted / max(1, inactive),
                "chosen": self.chosen / max(1, self.neurons),
                "missed_mass": self.missed_margins.total / (self.margins.total or 1.0),
            }
        return found
