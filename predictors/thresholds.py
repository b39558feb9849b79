"""Chooses a threshold for each layer, by the cost of its errors on held-out text."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .targets import Prices

# Scores are log-odds; beyond these edges a threshold would decide nothing. Edges are powers of two
# apart, so that arithmetic on scores places them exactly, and faster than a search.
SCORE_MAX = 24
EDGES_OF_UNIT = 64
EDGES = 2 * SCORE_MAX * EDGES_OF_UNIT + 1


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
        below = (scores * EDGES_OF_UNIT).ceil_().add_(SCORE_MAX * EDGES_OF_UNIT)
        # Edges below the score; none below what is no number, as it would never be predicted.
        places = below.clamp_(0, EDGES).nan_to_num_(0.0).int()
        everything = torch.bincount(places.flatten(), minlength=EDGES + 1).numpy()
        of_active = torch.bincount(places[active], minlength=EDGES + 1).numpy()
        self.active += of_active
        self.inactive += everything - of_active

    def misses(self) -> NDArray[np.int64]:
        """Active neurons that a threshold at each edge misses, [edges], rising."""
        return np.asarray(np.cumsum(self.active)[:-1])

    def false_loads(self) -> NDArray[np.int64]:
        """Inactive neurons that a threshold at each edge predicts, [edges], falling."""
        return np.asarray(self.inactive.sum() - np.cumsum(self.inactive)[:-1])

    def false_negatives(self) -> NDArray[np.float64]:
        """`misses` as a share of the active."""
        return np.asarray(self.misses() / max(1, int(self.active.sum())))

    def false_positives(self) -> NDArray[np.float64]:
        """`false_loads` as a share of the inactive."""
        return np.asarray(self.false_loads() / max(1, int(self.inactive.sum())))

    def false_positives_at(self, target: float) -> float:
        """False positives at the highest edge that misses at most `target` of the active."""
        return float(self.false_positives()[self.highest(target)])

    def highest(self, target: float) -> int:
        """Last edge that misses at most `target` of the active; the first where none does."""
        found = int(np.searchsorted(self.false_negatives(), target, side="right"))
        return max(0, found - 1)


def choose_threshold(
    histogram: ScoreHistogram, false_negatives: float, false_positives: float, prices: Prices
) -> float:
    """The threshold that costs least in bytes among those that meet both targets.

    If misses cost more than the needless reads of a lower threshold, it is lower than the first
    target requires. If none meets both targets, it is the one that reads least of those that meet
    the first: by price alone, a layer whose neurons the window mostly holds would be read whole.
    """
    cost = prices.false_load * histogram.false_loads() + prices.miss * histogram.misses()
    highest, extras = histogram.highest(false_negatives), histogram.false_positives()
    allowed = extras[: highest + 1] <= max(false_positives, extras[highest])
    return float(histogram.edges[int(np.argmin(np.where(allowed, cost[: highest + 1], np.inf)))])
