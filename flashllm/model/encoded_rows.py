"""Resident matrices and vectors stay as converted; rows of them are decoded to f32 where needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.dtypes import row_bytes
from flashllm.flash.raw_tensor import RawTensor
from flashllm.large_arrays import LARGE_ARRAYS

TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def torch_view(tensor: RawTensor) -> Tensor:
    """The encoded values as a torch tensor over the same memory, where torch knows the encoding."""
    return torch.from_numpy(tensor.raw).view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)


def vector(tensor: RawTensor) -> Tensor:
    """A decoded copy in f32, for norms and biases."""
    return torch.from_numpy(tensor.floats())


@dataclass(frozen=True, slots=True)
class Table:
    """Looks up rows, in f32, of a matrix that stays encoded in DRAM."""

    weight: RawTensor
    kernels: core.Kernels

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """[n] to [n, columns]."""
        if self.weight.dtype in TORCH_DTYPES:
            return torch_view(self.weight)[torch.tensor(ids)].float()
        out = torch.from_numpy(LARGE_ARRAYS.empty(len(ids), self.weight.shape[1]))
        decode(self.weight, self.kernels, np.array(ids, np.int32), out)
        return out


def decode(weight: RawTensor, kernels: core.Kernels, ids: NDArray[np.int32], out: Tensor) -> None:
    """The rows `ids` of a matrix, decoded into `out` [n, columns]."""
    columns, dtype = weight.shape[1], weight.dtype
    values = out.view(-1).numpy()
    if weight.is_tiled:
        kernels.decode_tiles(weight.raw, dtype, ids, columns, values)
    else:
        kernels.decode_rows(weight.raw, row_bytes(dtype, columns), 0, dtype, ids, columns, values)
