"""Thresholds: one a layer, from what false negatives and false positives cost on held-out text.

False negatives are counted per neuron that was active, false positives per neuron that was not
(paper, section 3.1; the only reading of its 5 and 7 % that gives the load it reports).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

# Scores are log-odds; beyond these edges a threshold would decide nothing.
SCORE_MAX = 24.0
EDGES = 2_401
FALSE_NEGATIVE_TARGET = 0.04
# No layer may miss more than this many times the target, however cheap that would be.
LAYER_ALLOWANCE = 1.5
# Bundles read in vain that one missed active neuron is worth: quality first.
LOADS_PER_MISS = 4.0
BISECTIONS = 60


class ScoreHistogram:
    """Counts of scores between fixed edges, for active and inactive neurons apart.

    At an edge the counts are exact: a neuron is predicted where its score is above the edge.
    """

    edges: torch.Tensor = torch.linspace(-SCORE_MAX, SCORE_MAX, EDGES)

    def __init__(self) -> None:
        self.active: NDArray[np.int64] = np.zeros(EDGES + 1, np.int64)
        self.inactive: NDArray[np.int64] = np.zeros(EDGES + 1, np.int64)

    def add(self, scores: torch.Tensor, active: torch.Tensor) -> None:
        """Count scores [tokens, d_ffn] with the truth [tokens, d_ffn]."""
        places = torch.bucketize(scores, self.edges, out_int32=True)  # edges below the score
        everything = torch.bincount(places.flatten(), minlength=EDGES + 1).numpy()
        of_active = torch.bincount(places[active], minlength=EDGES + 1).numpy()
        self.active += of_active
        self.inactive += everything - of_active

    @property
    def density(self) -> float:
        """Share of neurons that were active."""
        actives, inactives = int(self.active.sum()), int(self.inactive.sum())
        return actives / max(1, actives + inactives)

    def false_negatives(self) -> NDArray[np.float64]:
        """Share of the active that a threshold at each edge misses, [edges], rising."""
        below = np.cumsum(self.active)[:-1]
        return np.asarray(below / max(1, int(self.active.sum())))

    def false_positives(self) -> NDArray[np.float64]:
        """Share of the inactive that a threshold at each edge predicts, [edges], falling."""
        above = self.inactive.sum() - np.cumsum(self.inactive)[:-1]
        return np.asarray(above / max(1, int(self.inactive.sum())))

    def false_positives_at(self, target: float) -> float:
        """False positives at the highest edge that misses at most `target` of the active."""
        return float(self.false_positives()[_highest(self.false_negatives(), target)])


def choose_thresholds(
    histograms: Sequence[ScoreHistogram],
    target: float = FALSE_NEGATIVE_TARGET,
    loads_per_miss: float = LOADS_PER_MISS,
) -> list[float]:
    """A threshold a layer, the mean of false negatives at most `target`.

    A miss is worth `loads_per_miss` false loads; where that leaves the mean above the target it is
    worth as many more as it takes, the same in every layer, which is the cheapest way there.
    """
    if _mean_false_negatives(histograms, target, loads_per_miss) > target:
        low, high = loads_per_miss, 1e9
        for _ in range(BISECTIONS):
            middle = (low * high) ** 0.5
            over = _mean_false_negatives(histograms, target, middle) > target
            low, high = (middle, high) if over else (low, middle)
        loads_per_miss = high
    return [float(h.edges[_cheapest(h, target, loads_per_miss)]) for h in histograms]


def _mean_false_negatives(
    histograms: Sequence[ScoreHistogram], target: float, loads_per_miss: float
) -> float:
    shares = [h.false_negatives()[_cheapest(h, target, loads_per_miss)] for h in histograms]
    return float(np.mean(shares))


def _cheapest(histogram: ScoreHistogram, target: float, loads_per_miss: float) -> int:
    """Edge at which misses and false loads together cost the least, within the allowance."""
    misses, density = histogram.false_negatives(), histogram.density
    cost = (1 - density) * histogram.false_positives() + loads_per_miss * density * misses
    allowed = _highest(misses, LAYER_ALLOWANCE * target) + 1
    return int(np.argmin(cost[:allowed]))


def _highest(misses: NDArray[np.float64], target: float) -> int:
    """Last edge whose false negatives are at most `target`; the first where none are."""
    return max(0, int(np.searchsorted(misses, target, side="right")) - 1)
