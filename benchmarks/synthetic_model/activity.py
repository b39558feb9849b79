"""How often neurons are active, and how well a low-rank predictor can tell: the numbers aimed at.

A neuron's pre-activation is z[t] - z_j, where z[t] is a standard normal process over tokens. Of its
variance `1 - NOISE` lies in the layer's low-rank subspace, where a predictor sees it. The process
is the sum of a part that is new with each token and of one that decays over tokens, the same for
every direction of the residual stream; that makes activity persist.

The numbers below were fitted on that process alone, then on models (six layers of OPT-1.3B, four
small ones), where norms and the layers' own additions move them by a few percent, to what the paper
says of OPT-6.7B (arXiv 2312.11514, sections 3.1 and 3.2): 3 % active, 5 % of them missed and
7 % of the others named by the predictor, so that 9.6 % are predicted; five tokens together use
24 %, the sixth adds 2.4 %. A set of 3 % cannot reach 24 % in five tokens: what the paper counts in
windows are predicted neurons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NOISE = 0.228
"""Share of a pre-activation's variance that is not low-rank."""
SLOW_SHARE = 0.70
"""Share of the residual stream's variance that decays over tokens."""
SLOW_DECAY = 0.87
"""What is left of it from one token to the next."""
ACTIVE_FIRST, ACTIVE_LAST = 0.015, 0.055
"""Mean share of active neurons in the first and in the last layer; geometric between them, so 3.1 %
in the mean."""
HOTTEST = 0.9
"""How often the most active neuron of a layer is active; the others fall off as 1 / rank."""
MISSED = 0.047
"""Active neurons that the generator's own predictors are set to miss; of a model it is 5 %."""

_NORMAL = NormalDist()
_GRID = np.linspace(-9.0, 9.0, 36_001)
_CDF = np.array([_NORMAL.cdf(x) for x in _GRID])
_SCORES = np.linspace(-6.0, 6.0, 241)
_DENSITY = np.exp(-0.5 * _SCORES**2) * (_SCORES[1] - _SCORES[0]) / math.sqrt(2 * math.pi)
_LEVELS = 256

Floats = NDArray[np.float64]


def cdf(x: Floats) -> Floats:
    """Of the standard normal distribution, to 1e-7."""
    return np.asarray(np.interp(x, _GRID, _CDF))


def mean_active(layer: int, n_layers: int) -> float:
    """Share of a layer's neurons that are active, averaged over tokens."""
    place = layer / max(1, n_layers - 1)
    return ACTIVE_FIRST * float((ACTIVE_LAST / ACTIVE_FIRST) ** place)


def firing_rates(mean: float, neurons: int) -> Floats:
    """How often each neuron is active, falling: HOTTEST / (1 + rank / scale), with this mean."""
    ranks = (np.arange(neurons) + 0.5) / neurons
    low, high = -20.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        if (HOTTEST / (1 + ranks / math.exp(middle))).mean() < mean:
            low = middle
        else:
            high = middle
    return np.asarray(HOTTEST / (1 + ranks / math.exp(low)))


@dataclass(frozen=True, slots=True)
class LayerActivity:
    """One layer's neurons in order of how often they are active, the most active first."""

    levels: Floats
    """Standard deviations that each neuron's process must exceed, [d_ffn]."""
    margin: float
    """By how much less than its level a neuron's low-rank part must be to be predicted."""

    @classmethod
    def of(cls, layer: int, n_layers: int, neurons: int) -> LayerActivity:
        """For a layer of so many."""
        rates = firing_rates(mean_active(layer, n_layers), neurons)
        levels = np.array([-_NORMAL.inv_cdf(rate) for rate in rates])
        return cls(levels, _margin(levels[:: max(1, neurons // _LEVELS)]))

    @property
    def mean_output(self) -> Floats:
        """E[max(z - level, 0)], [d_ffn]."""
        density = np.exp(-0.5 * self.levels**2) / math.sqrt(2 * math.pi)
        return np.asarray(density - self.levels * cdf(-self.levels))

    @property
    def mean_square(self) -> Floats:
        """E[max(z - level, 0)^2], [d_ffn]."""
        density = np.exp(-0.5 * self.levels**2) / math.sqrt(2 * math.pi)
        return np.asarray((1 + self.levels**2) * cdf(-self.levels) - self.levels * density)


def _margin(levels: Floats) -> float:
    """Where a predictor that sees the low-rank part alone misses `MISSED` of the active."""
    seen, unseen = math.sqrt(1 - NOISE), math.sqrt(NOISE)
    distance = seen * _SCORES - levels[:, None]  # [levels, scores]
    active = cdf(distance / unseen) * _DENSITY
    low, high = -2.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        if active[distance <= -middle].sum() > MISSED * active.sum():
            low = middle
        else:
            high = middle
    return high
