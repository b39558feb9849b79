"""Decodes the bundles of a prompt's tile for a matrix product."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashllm import core
from flashllm.model.encoded_rows import TORCH_DTYPES
from flashllm.spec import ModelSpec
from flashllm.weight_cache.block_stream import Block


class TileDecoder:
    """Decodes up to `tile` bundles into f32 rows, in memory that is allocated once."""

    def __init__(self, spec: ModelSpec, kernels: core.Kernels, tile: int) -> None:
        self._spec = spec
        self.tile = tile
        self._kernels = kernels
        rows = 0 if spec.dtype == "f32" else tile
        self._decoded = torch.empty(rows, spec.rows_per_neuron * spec.d_model)

    def __call__(self, block: Block) -> Tensor:
        """[bundles, rows of a neuron, d_model]; the next call overwrites it."""
        spec = self._spec
        shape = (len(block), spec.rows_per_neuron, spec.d_model)
        if spec.dtype not in TORCH_DTYPES:
            return self._groups(block)
        raw = block.raw()
        if raw is None:
            return self._scattered(block).view(shape)
        encoded = torch.from_numpy(raw).view(TORCH_DTYPES[spec.dtype])
        rows = encoded[:, : spec.rows_per_neuron * spec.d_model]
        if spec.dtype == "f32":
            return rows.view(shape)
        return self._decoded[: len(rows)].copy_(rows).view(shape)

    def _scattered(self, block: Block) -> Tensor:
        """The same for bundles that lie apart: all rows of one are a single row here."""
        _, positions, rows = block.parts()
        out = self._decoded[: len(block)]
        self._kernels.decode_rows(
            rows, block.stride, 0, self._spec.dtype, positions, out.shape[1], out.view(-1).numpy()
        )
        return out

    def _groups(self, block: Block) -> Tensor:
        """The same for encodings that torch does not know: all up rows, then all down rows."""
        spec = self._spec
        shape = (spec.rows_per_neuron, len(block), spec.d_model)
        decoded = self._decoded.view(-1)[: math.prod(shape)].view(shape)
        _, positions, raw = block.parts()
        for row, out in enumerate(decoded.view(spec.rows_per_neuron, -1).numpy()):
            offset = row * spec.row_bytes
            self._kernels.decode_rows(
                raw, block.stride, offset, spec.dtype, positions, spec.d_model, out
            )
        return decoded.transpose(0, 1)
