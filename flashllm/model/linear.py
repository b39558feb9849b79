"""Layers of resident weights: a matrix with its bias, and normalisation; computed in f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flashllm.flash.raw_tensor import RawTensor
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
    """Layer or RMS normalisation over the last dimension."""

    kind: Literal["layer", "rms"]
    eps: float
    weight: Tensor | None  # [width]
    bias: Tensor | None  # [width]

    def __call__(self, x: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        width = x.shape[-1:]
        if self.kind == "rms":
            return torch.nn.functional.rms_norm(x, width, self.weight, self.eps)
        return torch.nn.functional.layer_norm(x, width, self.weight, self.bias, self.eps)
