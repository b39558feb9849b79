"""Outputs of experts, computed from bundles in memory: each is a feed-forward layer of its own.

A token's share of an expert has the same bits alone and among other tokens. Shares are added in
ascending order of experts, whatever arrives first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.arrays import Ids
from flashllm.flash.layout import BundleHeader
from flashllm.model.activations import activate_each
from flashllm.model.router import SelectRouted
from flashllm.spec import ModelSpec
from flashllm.weight_cache.block_stream import Block

_Floats = NDArray[np.float32]


class Experts:
    """Computes what a model's experts make of tokens, and adds it to hidden states."""

    def __init__(
        self, spec: ModelSpec, header: BundleHeader, kernels: core.Kernels, router: SelectRouted
    ) -> None:
        assert spec.experts is not None
        self.router = router
        """Chooses the experts of the tokens of a prompt."""
        self._spec = spec
        self._neurons = spec.experts.d_ffn
        self.stride = header.stride
        """Bytes from a bundle to the next."""
        self._kernels = kernels
        gate, up, down = header.bundle_parts
        # Gate and up lie one behind the other: a single matrix of twice the rows.
        self._gate_up_bytes, self._end = gate + up, gate + up + down

    def room(self, count: int) -> _Floats:
        """Memory for the outputs of `count` experts for one token: [count, d_model]."""
        return np.empty((count, self._spec.d_model), dtype=np.float32)

    def outputs(
        self,
        layer: int,  # noqa: ARG002
        rows: NDArray[np.uint8],
        ids: Ids,  # noqa: ARG002
        positions: Ids,
        x: _Floats,
        gate: _Floats | None,  # noqa: ARG002
    ) -> _Floats:
        """Outputs [n, d_model] of experts, at `positions` of `rows`, for `x` [d_model]."""
        out, dtype, neurons = self.room(len(positions)), self._spec.dtype, self._neurons
        both = np.empty(2 * neurons, dtype=np.float32)
        for number, position in enumerate(positions.tolist()):
            gate_up, down = self._matrices(rows, position)
            self._kernels.matvec(gate_up, dtype, x, both)
            hidden = activate_each(self._spec, both[:neurons]) * both[neurons:]
            self._kernels.matvec(down, dtype, hidden, out[number])
        return out

    def add(
        self,
        rows: NDArray[np.uint8],  # noqa: ARG002
        ids: Ids,  # noqa: ARG002
        positions: Ids,  # noqa: ARG002
        outputs: _Floats,
        out: _Floats,
    ) -> None:
        """Add outputs [n, d_model] to `out` [d_model], one after another."""
        for share in outputs:
            out += share

    def of_tokens(self, rows: NDArray[np.uint8], position: int, x: _Floats) -> _Floats:
        """Outputs of one expert for several tokens: [tokens, d_model] to the same."""
        dtype, neurons = self._spec.dtype, self._neurons
        gate_up, down = self._matrices(rows, position)
        both = np.empty((len(x), 2 * neurons), dtype=np.float32)
        self._kernels.matmul(gate_up, dtype, x, both)
        hidden = activate_each(self._spec, both[:, :neurons]) * both[:, neurons:]
        out = np.empty_like(x)
        self._kernels.matmul(down, dtype, hidden, out)
        return out

    def _matrices(
        self, rows: NDArray[np.uint8], position: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The encoded gate and up [2 * neurons, d_model], and down [d_model, neurons]."""
        expert = rows[position * self.stride :][: self._end]
        return expert[: self._gate_up_bytes], expert[self._gate_up_bytes :]


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Adds a layer's experts to the outputs of tokens, each with the tokens that chose it."""

    experts: Experts
    x: Tensor  # [tokens, d_model]
    weights: _Floats  # [tokens, n_experts], zero where not chosen
    tile: int
    """Experts of a block that are given at a time."""

    def add(self, tile: Block, out: Tensor) -> Tensor:
        """Adds the experts of a tile to `out`; their weights [tokens, experts]."""
        ids, positions, rows = tile.parts()
        vectors: _Floats = self.x.numpy()
        sums: _Floats = out.numpy()
        for expert, position in zip(ids.tolist(), positions.tolist(), strict=True):
            tokens = np.flatnonzero(self.weights[:, expert])
            if len(tokens):
                shares = self.experts.of_tokens(rows, position, vectors[tokens])
                sums[tokens] += shares * self.weights[tokens, expert][:, None]
        return torch.from_numpy(self.weights[:, tile.columns])
