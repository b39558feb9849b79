"""Layers of resident weights: a matrix with its bias, and normalisation; computed in f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.large_arrays import LARGE_ARRAYS
from flashllm.model.encoded_rows import vector
from flashllm.model.products import Products


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias` for a weight [out, in] that stays encoded in DRAM."""

    weight: RawTensor
    bias: Tensor | None  # [out]
    products: Products

    @classmethod
    def of(cls, weight: RawTensor, bias: RawTensor | None, products: Products) -> Linear:
        """The layer with this weight and bias."""
        return cls(weight, None if bias is None else vector(bias), products)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] to [tokens, out], in f32."""
        out = self.products.with_matrix(self.weight, x)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer or RMS normalisation of tokens, or only of each of their heads."""

    kind: Literal["layer", "rms"]
    eps: float
    weight: NDArray[np.float32] | None  # [width]
    bias: NDArray[np.float32] | None  # [width]
    kernels: core.Kernels

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, width] to the same shape."""
        out = LARGE_ARRAYS.empty(*x.shape)
        rows = x.contiguous().numpy()
        centred = self.kind == "layer"
        self.kernels.norm_rows(rows, self.weight, self.bias, centred, self.eps, out)
        return torch.from_numpy(out)
