"""The low-rank predictor of one layer: its form, and where its training starts.

It starts as the reduced-rank regression of the margins on the recorded inputs (the SVD of the
up-projection weighted by the inputs' covariance, and by how often a neuron is near zero), in
units of each neuron's own residual, so that its scores are close to log-odds before any training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import GROUP_BYTES, row_bytes
from flashllm.flash.raw_tensor import RawTensor

from .recorded_rows import LayerData

OVERSAMPLING = 16
POWER_ITERATIONS = 3
COVARIANCE_TOKENS_MIN = 8_192
RIDGE = 1e-4
# The logistic function comes closest to the normal distribution's with this slope.
LOGISTIC_SLOPE = 1.702
# A neuron that the predictor explains all but wholly still gets finite odds.
RESIDUAL_SHARE_MIN = 0.05
STD_MIN = 1e-6
IMPORTANCE_MIN = 0.02


@dataclass(frozen=True, slots=True)
class LowRank:
    """Neuron j scores `up[j] . (down @ x) + bias[j]`; above the layer's threshold it is active.

    down [rank, d_model] and up [d_ffn, rank] in float16, bias [d_ffn] in float32. `dtype` is how
    the two matrices are stored.
    """

    down: torch.Tensor
    up: torch.Tensor
    bias: torch.Tensor
    dtype: str = "f16"

    @property
    def rank(self) -> int:
        """Width of the bottleneck."""
        return self.down.shape[0]

    def as_run(self) -> LowRank:
        """The predictor whose matrices have the values that are stored, in float32 if need be."""
        if self.dtype not in GROUP_BYTES:
            return self
        down, up = (self._rounded(matrix) for matrix in (self.down, self.up))
        return LowRank(down, up, self.bias, "f32")

    def stored(self, matrix: torch.Tensor) -> torch.Tensor:
        """One of the matrices as it is stored: rows in int8 or int4 are bytes."""
        if self.dtype not in GROUP_BYTES:
            return matrix.contiguous()
        raw = torch.from_numpy(self._encoded(matrix))
        return raw.view(len(matrix), row_bytes(self.dtype, matrix.shape[1]))

    def _encoded(self, matrix: torch.Tensor) -> NDArray[np.uint8]:
        columns = matrix.shape[1]
        out = np.empty(len(matrix) * row_bytes(self.dtype, columns), np.uint8)
        values = matrix.float().contiguous().view(-1).numpy()
        kernels = core.Kernels(threads=1)
        kernels.encode_rows(values, columns, self.dtype, out)
        kernels.close()
        return out

    def _rounded(self, matrix: torch.Tensor) -> torch.Tensor:
        shape = tuple(matrix.shape)
        return torch.from_numpy(RawTensor(self._encoded(matrix), self.dtype, shape).floats())

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


def input_statistics(data: LayerData) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [d_model] and covariance [d_model, d_model] of inputs, or of an even sample of them."""
    d_model = data.shape.d_model
    step = max(1, len(data) // max(COVARIANCE_TOKENS_MIN, 4 * d_model))
    tokens = len(range(0, len(data), step))
    total = torch.zeros(d_model, dtype=torch.float64)
    for inputs in data.sample(step):
        total += inputs.double().sum(0)
    mean = (total / tokens).float()
    covariance = torch.zeros(d_model, d_model)
    for inputs in data.sample(step):
        centred = inputs - mean
        covariance.addmm_(centred.T, centred)
    return mean, covariance / tokens


class Start:
    """The reduced-rank regression of a layer's margins on its inputs, for every rank up to one.

    Of it are kept the leading directions of the margins' variance; those of a lower rank are the
    first among them.
    """

    def __init__(
        self,
        up_projection: torch.Tensor,
        data: LayerData,
        mean_margin: torch.Tensor,
        rank_max: int,
        seed: int,
    ) -> None:
        """From the true weights [d_ffn, d_model] and the mean margin [d_ffn] over `data`.

        The margin is linear in the input, and its mean stands in for bias and threshold.
        """
        self._mean_margin = mean_margin
        self._mean, covariance = input_statistics(data)
        ridge = RIDGE * covariance.diagonal().mean().clamp_min(STD_MIN)
        covariance.diagonal().add_(ridge)
        spread = up_projection @ torch.linalg.cholesky(covariance)
        del covariance
        # Squares of a row of `spread` [d_ffn, d_model] sum to the variance of its margin.
        self._variance = spread.square().sum(1).clamp_min(STD_MIN**2)
        weight = _importance(mean_margin, self._variance)
        left, sizes = _leading(spread * weight[:, None], rank_max, seed)
        # Hidden units of variance 1: Adam's steps then mean the same in every layer.
        directions = (left * weight[:, None]).T / sizes.clamp_min(STD_MIN)[:, None]
        self._down = directions @ up_projection  # [rank, d_model]
        self._up = spread @ (directions @ spread).T  # [d_ffn, rank]

    def parameters(self, rank: int) -> Parameters:
        """Where training at a rank starts, a copy."""
        down, up = self._down[:rank].clone(), self._up[:, :rank].clone()
        residual = (self._variance - up.square().sum(1)).clamp_min(0.0)
        floor = RESIDUAL_SHARE_MIN**2 * self._variance
        slope = LOGISTIC_SLOPE / torch.maximum(residual, floor).sqrt()
        bias = self._mean_margin - up @ (down @ self._mean)
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
