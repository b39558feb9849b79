"""Outputs of neurons, computed by the row kernels from rows in memory.

A token has the same bits alone and among several tokens, of which each has its own neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.large_arrays import Floats
from flashllm.model.activations import activate, combine
from flashllm.model.linear import Linear, Norm
from flashllm.model.resident_ffn import SharedExpert
from flashllm.model.token_sets import BlockSlice
from flashllm.spec import ModelSpec
from flashllm.weight_cache.block_stream import Block
from flashllm.weight_cache.rounds import block_ends


@dataclass(frozen=True, slots=True)
class FeedForwardWeights:
    """The resident weights of one feed-forward layer."""

    gate: Linear | None
    """The gate with its bias, where its rows are not on flash."""
    gate_bias: Floats | None  # [d_ffn], where they are
    up_bias: Floats | None  # [d_ffn]
    down_bias: Floats | None  # [d_model]
    norm: Norm | None
    """The norm before the layer; None where norms follow the layers."""
    shared: SharedExpert | None = None
    """The expert that all tokens go through, beside those that are chosen."""

    def gate_outputs(self, spec: ModelSpec, x: Floats) -> Floats | None:
        """The resident gate's outputs [d_ffn] for [1, d_model]; None where it is on flash."""
        if self.gate is None:
            return None
        outputs: Floats = activate(spec, self.gate(x)[0])
        return outputs

    def beside(self, x: Floats) -> Floats | None:
        """What is added to the outputs of bundles, for the layer's input [tokens, d_model].

        The bias of the down projection, or the output of the shared expert; None for nothing.
        """
        return self.down_bias if self.shared is None else self.shared(x)


class Neurons:
    """Computes the outputs of a model's neurons, and adds them to hidden states."""

    def __init__(
        self,
        spec: ModelSpec,
        stride: int,
        kernels: core.Kernels,
        weights: Sequence[FeedForwardWeights],
    ) -> None:
        """`stride` in bytes, from a bundle to the next."""
        self._spec = spec
        self.stride = stride
        """Bytes from a bundle to the next."""
        self._kernels = kernels
        self._weights = weights
        # Rows of a neuron lie in the order gate, up, down.
        self._up_offset = spec.row_bytes * (spec.rows_per_neuron - 2)
        self._down_offset = spec.row_bytes * (spec.rows_per_neuron - 1)

    def room(self, count: int) -> Floats:
        """Memory for the outputs of `count` neurons, [count]."""
        return np.empty(count, dtype=np.float32)

    def outputs(
        self,
        layer: int,
        rows: NDArray[np.uint8],
        ids: Ids,
        positions: Ids,
        x: Floats,
        gate: Floats | None,
        ends: Ids | None = None,
    ) -> Floats:
        """Outputs [n] of the neurons `ids`, at `positions` of `rows`, for `x` [d_model].

        `gate` [n] holds the outputs of their resident gate. With `ends` [tokens], `x` is [tokens,
        d_model], and `ends` says where each token's neurons end.
        """
        spec, weights = self._spec, self._weights[layer]
        up = self._dots(rows, self._up_offset, positions, ids, x, weights.up_bias, ends)
        if gate is not None:
            return combine(spec, gate, up)
        if spec.gate == "none":
            return activate(spec, up)
        deciding = self._dots(rows, 0, positions, ids, x, weights.gate_bias, ends)
        return combine(spec, activate(spec, deciding), up)

    def _dots(
        self,
        rows: NDArray[np.uint8],
        offset: int,
        positions: Ids,
        ids: Ids,
        x: Floats,
        bias: Floats | None,
        ends: Ids | None,
    ) -> Floats:
        dots = np.empty(len(ids), dtype=np.float32)
        where = (rows, self.stride, offset, self._spec.dtype, positions)
        if ends is None:
            self._kernels.dot_rows(*where, x, dots)
        else:
            self._kernels.dot_rows_each(*where, ends, x.reshape(-1), dots)
        if bias is not None:
            dots += bias.take(ids)
        return dots

    def add_outputs(
        self,
        layer: int,
        rows: NDArray[np.uint8],
        ids: Ids,
        positions: Ids,
        x: Floats,
        gate: Floats | None,
        weights: Floats | None,
        out: Floats,
    ) -> None:
        """`outputs` of neurons, and `add`."""
        outputs = self.outputs(layer, rows, ids, positions, x, gate)
        self.add(rows, ids, positions, outputs, weights, out)

    def add(
        self,
        rows: NDArray[np.uint8],
        ids: Ids,
        positions: Ids,
        outputs: Floats,
        weights: Floats | None,
        out: Floats,
    ) -> None:
        """Add the neurons' down rows, times their outputs [n] and weights, to `out` [d_model]."""
        if weights is not None:
            outputs = outputs * weights
        if len(ids):
            dtype, ends = self._spec.dtype, block_ends(ids)
            self._kernels.weighted_sum_rows(
                rows, self.stride, self._down_offset, dtype, positions, outputs, ends, out
            )

    def add_block_slice(
        self,
        layer: int,
        block: Block,
        slice_: BlockSlice,
        x: Floats,
        gates: Floats | None,
        out: Floats,
    ) -> Floats:
        """Add each token's selected neurons of a block to `out`, for `x` [tokens, d_model].

        `gates` is [tokens, d_ffn]. Returns the outputs [n].
        """
        rows, positions = block.rows, block.positions_of(slice_.ids)
        gate = None if gates is None else gates[slice_.tokens, slice_.ids]
        outputs = self.outputs(layer, rows, slice_.ids, positions, x, gate, slice_.ends)
        if slice_.weights is not None:
            outputs *= slice_.weights
        if len(outputs):
            self._kernels.weighted_sum_rows_each(
                rows, self.stride, self._down_offset, self._spec.dtype, positions, outputs,
                slice_.ends, slice_.block_ends(), out.reshape(-1),
            )  # fmt: skip
        return outputs
