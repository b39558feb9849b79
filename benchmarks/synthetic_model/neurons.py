"""The feed-forward weights of one layer: which neurons are active, and which of them together.

The row that decides on a neuron is a point in the layer's subspace, near the centre of its cluster,
and noise in all directions. Neurons of a cluster are active together; how often each is active is
independent of that.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .activity import NOISE, Floats, LayerActivity
from .normals import generator, normals

CLUSTER_NEURONS = 64
CLUSTER_SHARE = 0.7
"""Share of a low-rank part's variance that is the centre's."""
RANK_SHARE, LATE_RANK_SHARE = 32, 4
"""Of `d_model`: 128 and 1024 for 4096, the ranks of the paper's predictors for OPT-6.7B."""
LATE_LAYERS_SHARE = 8
RANK_MIN = 8

Matrix = NDArray[np.float32]


def rank_of(layer: int, n_layers: int, d_model: int) -> int:
    """Rank of a layer's subspace: higher in the last eighth of the layers."""
    late = layer >= n_layers - max(1, n_layers // LATE_LAYERS_SHARE)
    return max(RANK_MIN, d_model // (LATE_RANK_SHARE if late else RANK_SHARE))


@dataclass(frozen=True, slots=True)
class Neurons:
    """One layer; the same numbers give the same weights. Blocks may be made in any order."""

    seed: int
    layer: int
    n_layers: int
    d_model: int
    d_ffn: int
    constant: bool = False
    """Whether column 0 of the input is a constant 1, which then takes the place of a bias."""

    @property
    def rank(self) -> int:
        """Of the layer's subspace."""
        return rank_of(self.layer, self.n_layers, self.d_model)

    def deciding(self, first: int, count: int) -> Matrix:
        """Rows [count, d_model] whose products with a normed input have variance 1."""
        frame = _frame(self)
        noise = normals(
            generator(self.seed, self.layer, 2, first),
            (count, self.d_model),
            math.sqrt(NOISE / self.d_model),
        )
        noise += frame.factors[first : first + count] @ frame.basis
        if self.constant:
            noise[:, 0] = -frame.levels[first : first + count]
        return noise

    def adding(self, first: int, count: int, gain: float) -> Matrix:
        """Rows [count, d_ffn] of the down matrix, whose outputs have the deviation `gain`.

        Blind to the mean of the neurons' outputs: else the most active neurons would add a constant
        to the stream, larger than all the rest.
        """
        mean = _frame(self).mean_output
        deviation = gain / math.sqrt(self.mean_square)
        rows = normals(generator(self.seed, self.layer, 3, first), (count, self.d_ffn), deviation)
        rows -= np.outer(rows @ mean, mean / (mean @ mean))
        return rows

    @property
    def levels(self) -> Matrix:
        """What each neuron's pre-activation must exceed, [d_ffn]."""
        return _frame(self).levels

    @property
    def mean_square(self) -> float:
        """Sum of the mean squares of all outputs."""
        return _mean_square(self.layer, self.n_layers, self.d_ffn)

    def predictor(self) -> tuple[Matrix, Matrix, Matrix, float]:
        """down [rank, d_model], up [d_ffn, rank], bias [d_ffn] and threshold: the weights' own."""
        frame = _frame(self)
        return frame.basis, frame.factors, -frame.levels, -frame.margin


@dataclass(frozen=True, slots=True)
class _Frame:
    """What all blocks of a layer share."""

    basis: Matrix  # [rank, d_model], orthonormal rows
    factors: Matrix  # [d_ffn, rank]
    levels: Matrix  # [d_ffn]
    mean_output: Matrix  # [d_ffn]
    margin: float


@functools.lru_cache(maxsize=256)
def _mean_square(layer: int, n_layers: int, d_ffn: int) -> float:
    return float(LayerActivity.of(layer, n_layers, d_ffn).mean_square.sum())


@functools.lru_cache(maxsize=3)
def _frame(neurons: Neurons) -> _Frame:
    random = generator(neurons.seed, neurons.layer, 1)
    activity = LayerActivity.of(neurons.layer, neurons.n_layers, neurons.d_ffn)
    order = random.permutation(neurons.d_ffn)
    basis = np.linalg.qr(normals(random, (neurons.d_model, neurons.rank)))[0].T
    if neurons.constant:
        basis[:, 0] = 0
    return _Frame(
        basis=np.ascontiguousarray(basis, dtype=np.float32),
        factors=_factors(random, neurons.d_ffn, neurons.rank),
        levels=_narrow(activity.levels[order]),
        mean_output=_narrow(activity.mean_output[order]),
        margin=activity.margin,
    )


def _factors(random: np.random.Generator, neurons: int, rank: int) -> Matrix:
    """Points [neurons, rank] of norm sqrt(1 - NOISE), in clusters."""
    clusters = max(1, neurons // CLUSTER_NEURONS)
    centres = normals(random, (clusters, rank))
    centres *= math.sqrt(CLUSTER_SHARE) / np.linalg.norm(centres, axis=1, keepdims=True)
    own = normals(random, (neurons, rank), math.sqrt((1 - CLUSTER_SHARE) / rank))
    points = own + centres[random.integers(clusters, size=neurons)]
    points *= math.sqrt(1 - NOISE) / np.linalg.norm(points, axis=1, keepdims=True)
    return points


def _narrow(values: Floats) -> Matrix:
    return values.astype(np.float32)
