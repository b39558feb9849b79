"""Resident matrices and vectors: stored as converted, computed in f32.

One token goes through our row kernels at the speed of DRAM; a chunk of tokens goes through
torch's matrix product over blocks of decoded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.dtypes import row_bytes
from flashllm.flash.raw_tensor import RawTensor

TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def torch_view(tensor: RawTensor) -> Tensor:
    """The encoded values as a torch tensor over the same memory, where torch knows the encoding."""
    return torch.from_numpy(tensor.raw).view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)


def vector(tensor: RawTensor) -> Tensor:
    """A decoded copy in f32, for norms and biases."""
    return torch.from_numpy(tensor.floats())


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are looked up, in f32, of a matrix that stays encoded in DRAM."""

    weight: RawTensor
    kernels: core.Kernels

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """[n] to [n, columns]."""
        if self.weight.dtype in TORCH_DTYPES:
            return torch_view(self.weight)[torch.tensor(ids)].float()
        out = torch.empty(len(ids), self.weight.shape[1])
        decode(self.weight, self.kernels, np.array(ids, np.int32), out)
        return out


def decode(weight: RawTensor, kernels: core.Kernels, ids: NDArray[np.int32], out: Tensor) -> None:
    """The rows `ids` of a matrix, decoded into `out` [n, columns]."""
    columns, dtype = weight.shape[1], weight.dtype
    nbytes = row_bytes(dtype, columns)
    kernels.decode_rows(weight.raw, nbytes, 0, dtype, ids, columns, out.view(-1).numpy())


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias` for a weight [out, in] that stays encoded in DRAM."""

    weight: RawTensor
    bias: Tensor | None  # [out]
    kernels: core.Kernels
    block_rows: int

    @classmethod
    def of(
        cls, weight: RawTensor, bias: RawTensor | None, kernels: core.Kernels, block_rows: int
    ) -> Linear:
        """The layer whose weight and bias these are."""
        return cls(
            weight=weight,
            bias=None if bias is None else vector(bias),
            kernels=kernels,
            block_rows=block_rows,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] to [tokens, out], in f32."""
        out = self._one(x) if x.shape[0] == 1 else self._many(x)
        return out if self.bias is None else out.add_(self.bias)

    def _one(self, x: Tensor) -> Tensor:
        weight, out = self.weight, torch.empty(1, self.weight.shape[0])
        self.kernels.matvec(weight.raw, weight.dtype, x.contiguous().numpy()[0], out.numpy()[0])
        return out

    def _many(self, x: Tensor) -> Tensor:
        if self.weight.dtype == "f32":
            return x @ torch_view(self.weight).T
        n_rows = self.weight.shape[0]
        out = torch.empty(x.shape[0], n_rows)
        # Only a block of rows is ever decoded, so a narrow matrix never exists twice.
        for start in range(0, n_rows, self.block_rows):
            rows = self._decoded(start, min(start + self.block_rows, n_rows))
            out[:, start : start + len(rows)] = x @ rows.T
        return out

    def _decoded(self, start: int, stop: int) -> Tensor:
        if self.weight.dtype in TORCH_DTYPES:
            return torch_view(self.weight)[start:stop].float()
        out = torch.empty(stop - start, self.weight.shape[1])
        decode(self.weight, self.kernels, np.arange(start, stop, dtype=np.int32), out)
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
