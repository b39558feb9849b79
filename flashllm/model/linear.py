"""Layers of resident weights: a matrix with its bias, and normalisation; computed in f32."""

from __future__ import annotations

from collections.abc import Sequence
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
        return self.products.with_matrices([self.weight], [self.bias], x)[0]


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Layers that take the same input: computed in one call of the core where they are alike."""

    layers: Sequence[Linear]
    weights: Sequence[RawTensor]
    """Of all of them where their matrices are alike; else none."""
    biases: Sequence[Floats | None]

    @classmethod
    def of(cls, *layers: Linear) -> LinearGroup:
        """These layers, in this order."""
        kinds = {(layer.weight.dtype, layer.weight.is_tiled) for layer in layers}
        weights = [layer.weight for layer in layers] if len(kinds) == 1 else []
        return cls(layers, weights, [layer.bias for layer in layers])

    def __call__(self, x: Floats) -> list[Floats]:
        """[tokens, in] to [tokens, out] of each, in f32."""
        if not self.weights:
            return [layer(x) for layer in self.layers]
        return self.layers[0].products.with_matrices(self.weights, self.biases, x)


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
