"""Which neurons are active together, and how often: the closest friends of the paper's figure 5.

The n-th closest friend of a neuron is the n-th most frequent among those that are active when it
is. Bundling a neuron with its closest friend fails where the same few neurons are everybody's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RANKS = (1, 2, 3, 4, 8)
CLOSEST = ("closest_distinct", "closest_most", "closest_most_id", "closest_most_uses")
QUANTILES = (0.1, 0.5, 0.9)
SAMPLE_MAX = 256
COUNT_BYTES_MAX = 64 << 20
USES_MIN = 10
"""Neurons that were active less often have no friends that would mean anything."""
NEURONS_MIN = 8
"""If fewer neurons of the sample were active that often, the layer is not reported."""


def sample_size(n_layers: int, n_neurons: int) -> int:
    """Neurons a layer whose friends are counted, so that all counts fit into their bytes."""
    return max(8, min(SAMPLE_MAX, n_neurons, COUNT_BYTES_MAX // (4 * n_layers * n_neurons)))


class FriendMeter:
    """Counts of one layer: a seeded sample of its neurons against all of them."""

    def __init__(self, n_neurons: int, sample: int, seed: tuple[int, int]) -> None:
        generator = np.random.default_rng(seed)
        chosen = generator.choice(n_neurons, min(sample, n_neurons), replace=False)
        self.sample = np.sort(chosen)
        self._together = np.zeros(
            (len(self.sample), n_neurons), np.float32
        )  # whole numbers below 2**24
        self._uses = np.zeros(n_neurons, np.int64)

    def add(self, active: NDArray[np.bool_]) -> None:
        """Count the active neurons of some tokens, [tokens, neurons]."""
        flags = active.astype(np.float32)
        self._together += flags[:, self.sample].T @ flags
        self._uses += active.sum(axis=0)

    def to_json(self) -> dict[str, Any]:
        """How often friends of each rank come along, and of how many one neuron is the closest.

        Of the `looked_at` neurons, `closest_most` is the share whose closest friend is neuron
        `closest_most_id`, the one that most have; it was active `closest_most_uses` times. Among
        friends that come along equally often, the one with the lowest id counts as the closest.
        """
        uses, together = self._uses, self._together.copy()
        own = uses[self.sample]
        together[np.arange(len(own)), self.sample] = -1.0  # nobody is a friend of their own
        looked_at = own >= USES_MIN
        report: dict[str, Any] = {"sampled": len(own), "looked_at": int(looked_at.sum())}
        if report["looked_at"] < NEURONS_MIN:
            return report | {"rank": {str(rank): None for rank in RANKS}} | dict.fromkeys(CLOSEST)
        together, own = together[looked_at], own[looked_at]
        ranked = -np.sort(-together, axis=1)
        closest, times = np.unique(together.argmax(axis=1), return_counts=True)
        hottest = int(times.argmax())
        found = (
            len(closest),
            float(times[hottest] / len(own)),
            int(closest[hottest]),
            int(uses[closest[hottest]]),
        )
        return (
            report
            | {"rank": {str(rank): _spread(ranked[:, rank - 1] / own) for rank in RANKS}}
            | dict(zip(CLOSEST, found, strict=True))
        )


def _spread(shares: NDArray[np.float64]) -> dict[str, float]:
    quantiles = np.quantile(shares, QUANTILES)
    named = {f"q{100 * q:.0f}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)}
    return {"mean": float(shares.mean())} | named
