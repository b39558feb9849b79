"""Resident matrices whose rows are put in tiles, where the instruction set multiplies those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flashllm import core
from flashllm.dtypes import GROUP_BYTES
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.tensor_table import EMBEDDING, HEAD


def tile_matrices(resident: Mapping[str, RawTensor], kernels: core.Kernels) -> dict[str, RawTensor]:
    """The same tensors, those that are multiplied in tiles, in their memory.

    An embedding is multiplied where it is the head too.
    """
    left = {EMBEDDING} if HEAD in resident else set()
    return {
        name: tensor if name in left else _tiled(tensor, kernels)
        for name, tensor in resident.items()
    }


def _tiled(tensor: RawTensor, kernels: core.Kernels) -> RawTensor:
    if tensor.dtype not in GROUP_BYTES:
        return tensor
    is_tiled = kernels.tile_matrix(tensor.raw, tensor.dtype, tensor.shape[-1])
    return replace(tensor, is_tiled=is_tiled)
