"""The low-rank predictor of one layer: its rank, its form, and where its training starts.

It starts as the reduced-rank regression of the pre-activations on the recorded inputs (the SVD of
the up-projection weighted by the inputs' covariance, and by how often a neuron is near zero), in
units of each neuron's own residual, so that its scores are close to log-odds before any training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

RANK = 128
OVERSAMPLING = 16
POWER_ITERATIONS = 3
COVARIANCE_TOKENS_MIN = 8_192
CHUNK_TOKENS = 1_024
RIDGE = 1e-4
# The logistic function comes closest to the normal distribution's with this slope.
LOGISTIC_SLOPE = 1.702
# A neuron that the predictor explains all but wholly still gets finite odds.
RESIDUAL_SHARE_MIN = 0.05
STD_MIN = 1e-6
IMPORTANCE_MIN = 0.02


def rank_of_layer(n_layers: int, d_model: int, layer: int) -> int:
    """Rank 128, and in the last eighth of the layers d_model / 4 or half as much again.

    OPT-6.7B gets 128, and 1024 in its last four, as in the paper. Narrow models get at most half
    of their width, and three quarters of it at the end.
    """
    rank = max(1, min(RANK, d_model // 2))
    if layer < n_layers - max(1, n_layers // 8):
        return rank
    return min(d_model, max(rank + rank // 2, d_model // 4))


@dataclass(frozen=True, slots=True)
class LowRank:
    """Neuron j scores `up[j] . (down @ x) + bias[j]`; above the layer's threshold it is active.

    down [rank, d_model] and up [d_ffn, rank] in float16, bias [d_ffn] in float32.
    """

    down: torch.Tensor
    up: torch.Tensor
    bias: torch.Tensor

    @property
    def rank(self) -> int:
        """Width of the bottleneck."""
        return self.down.shape[0]

    def scores(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores [tokens, d_ffn] in float32 of inputs [tokens, d_model]."""
        hidden = inputs.float() @ self.down.float().T  # [tokens, rank]
        return torch.addmm(self.bias, hidden, self.up.float().T)


@dataclass(frozen=True, slots=True)
class Parameters:
    """A predictor in training, in float32."""

    down: torch.Tensor
    up: torch.Tensor
    bias: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        """What the optimiser changes."""
        return [self.down, self.up, self.bias]

    def rounded(self) -> LowRank:
        """The predictor as it is stored, a copy."""
        down, up, bias = (tensor.detach() for tensor in self.tensors())
        return LowRank(down.half(), up.half(), bias.float().clone())


def input_statistics(inputs: NDArray[np.float16]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [d_model] and covariance [d_model, d_model] of inputs, or of an even sample of them."""
    tokens, d_model = inputs.shape
    step = max(1, tokens // max(COVARIANCE_TOKENS_MIN, 4 * d_model))
    sample = inputs[::step]
    total = torch.zeros(d_model, dtype=torch.float64)
    for start in range(0, len(sample), CHUNK_TOKENS):
        total += _floats(sample[start : start + CHUNK_TOKENS]).double().sum(0)
    mean = (total / len(sample)).float()
    covariance = torch.zeros(d_model, d_model)
    for start in range(0, len(sample), CHUNK_TOKENS):
        centred = _floats(sample[start : start + CHUNK_TOKENS]) - mean
        covariance.addmm_(centred.T, centred)
    return mean, covariance / len(sample)


def initial_parameters(
    up_projection: torch.Tensor,
    inputs: NDArray[np.float16],
    mean_pre_activation: torch.Tensor,
    rank: int,
    seed: int,
) -> Parameters:
    """The reduced-rank regression of the pre-activations on `inputs` [tokens, d_model].

    `up_projection` [d_ffn, d_model] are the true weights, `mean_pre_activation` [d_ffn] the mean
    over the same tokens, which stands in for the bias.
    """
    mean, covariance = input_statistics(inputs)
    d_model = len(mean)
    ridge = RIDGE * covariance.diagonal().mean().clamp_min(STD_MIN)
    factor = torch.linalg.cholesky(covariance + ridge * torch.eye(d_model))
    spread = up_projection @ factor  # [d_ffn, d_model], squares of a row sum to its variance
    variance = spread.square().sum(1).clamp_min(STD_MIN**2)
    weight = _importance(mean_pre_activation, variance)
    left, sizes = _leading(spread * weight[:, None], rank, seed)
    # Hidden units of variance 1: Adam's steps then mean the same in every layer.
    directions = (left * weight[:, None]).T / sizes.clamp_min(STD_MIN)[:, None]  # [rank, d_ffn]
    down = directions @ up_projection
    up = spread @ (directions @ spread).T
    residual = (variance - up.square().sum(1)).clamp_min(0.0)
    floor = RESIDUAL_SHARE_MIN**2 * variance
    slope = LOGISTIC_SLOPE / torch.maximum(residual, floor).sqrt()
    bias = mean_pre_activation - up @ (down @ mean)
    return Parameters(down, up * slope[:, None], bias * slope)


def _importance(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Weight [d_ffn] of each neuron's error: per standard deviation, and by how near zero it lies.

    The root of the normal density at zero; on the demo it took a sixth off the false positives.
    """
    density = torch.exp(-0.5 * mean.square() / variance)
    weight = (density / variance).sqrt()
    return weight.clamp_min(IMPORTANCE_MIN * weight.max())


def _leading(matrix: torch.Tensor, rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Leading left singular vectors [rows, rank] and singular values [rank], randomised."""
    width = min(rank + OVERSAMPLING, *matrix.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, sizes, _ = torch.svd_lowrank(matrix, q=width, niter=POWER_ITERATIONS)
    return left[:, :rank], sizes[:rank]


def _floats(values: NDArray[np.float16]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))
