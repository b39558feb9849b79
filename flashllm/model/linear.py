"""Layers of resident weights: a matrix with its bias, and normalisation; computed in f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.model.products import Products


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias` for a weight [out, in] that stays encoded in DRAM."""

    weight: RawTensor
    bias: Floats | None  # [out]
    products: Products

    @classmethod
    def of(cls, weight: RawTensor, bias: RawTensor | None, products: Products) -> Linear:
        """The layer with this weight and bias."""
        return cls(weight, None if bias is None else bias.floats(), products)

    def __call__(self, x: Floats) -> Floats:
        """[tokens, in] to [tokens, out], in f32."""
        out = self.products.with_matrix(self.weight, x)
        if self.bias is not None:
            out += self.bias
        return out


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer or RMS normalisation of tokens, or only of each of their heads."""

    kind: Literal["layer", "rms"]
    eps: float
    weight: NDArray[np.float32] | None  # [width]
    bias: NDArray[np.float32] | None  # [width]
    kernels: core.Kernels

    def __call__(self, x: Floats) -> Floats:
        """[tokens, width] to the same shape."""
        out = LARGE_ARRAYS.empty(*x.shape)
        rows = np.ascontiguousarray(x)
        centred = self.kind == "layer"
        self.kernels.norm_rows(rows, self.weight, self.bias, centred, self.eps, out)
        return out
