"""Resident matrices and vectors: stored as converted, computed in f32.

One token goes through our row kernels at the speed of DRAM; a chunk of tokens goes through
torch's matrix product over blocks of decoded rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm.flash import core
from flashllm.flash.store import RawTensor

TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def torch_view(tensor: RawTensor) -> Tensor:
    """The encoded values as a torch tensor over the same memory."""
    return torch.from_numpy(tensor.raw).view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)


def vector(tensor: RawTensor) -> Tensor:
    """A decoded copy in f32, for norms and biases."""
    return torch.from_numpy(tensor.floats())


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias` for a weight [out, in] that stays encoded in DRAM."""

    raw: NDArray[np.uint8]
    dtype: str
    encoded: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    kernels: core.Kernels
    block_rows: int

    @classmethod
    def of(
        cls, weight: RawTensor, bias: RawTensor | None, kernels: core.Kernels, block_rows: int
    ) -> Linear:
        """The layer whose weight and bias these are."""
        return cls(
            raw=weight.raw,
            dtype=weight.dtype,
            encoded=torch_view(weight),
            bias=None if bias is None else vector(bias),
            kernels=kernels,
            block_rows=block_rows,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] to [tokens, out], in f32."""
        out = self._one(x) if x.shape[0] == 1 else self._many(x)
        return out if self.bias is None else out.add_(self.bias)

    def _one(self, x: Tensor) -> Tensor:
        out = torch.empty(1, self.encoded.shape[0])
        self.kernels.matvec(self.raw, self.dtype, x.contiguous().numpy()[0], out.numpy()[0])
        return out

    def _many(self, x: Tensor) -> Tensor:
        if self.dtype == "f32":
            return x @ self.encoded.T
        out = torch.empty(x.shape[0], self.encoded.shape[0])
        # Only a block of rows is ever decoded, so a 16-bit matrix never exists twice.
        for start in range(0, self.encoded.shape[0], self.block_rows):
            rows = self.encoded[start : start + self.block_rows].float()
            out[:, start : start + len(rows)] = x @ rows.T
        return out


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
