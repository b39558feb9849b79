"""Outputs of experts, computed from bundles in memory: each is a feed-forward layer of its own.

A token's share of an expert has the same bits alone and among other tokens. Shares are added in
ascending order of experts, whatever arrives first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.flash.layout import BundleHeader
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.model.activations import Gates, activate, activate_times
from flashllm.model.ffn_neurons import Used
from flashllm.model.router import SelectRouted
from flashllm.spec import SPARSE_ACTIVATIONS, ModelSpec
from flashllm.weight_cache.block_stream import Block
from flashllm.weight_cache.counters import StreamCounters

PAIRS_AN_EXPERT = 2
"""Where experts have no more tokens each, in the mean, all pairs of both are multiplied in a few
calls: an expert is read for each of its tokens then."""


class Experts:
    """Computes what a model's experts make of tokens, and adds it to hidden states."""

    def __init__(
        self,
        spec: ModelSpec,
        header: BundleHeader,
        kernels: core.Kernels,
        router: SelectRouted,
        counters: StreamCounters,
    ) -> None:
        assert spec.experts is not None
        self.router = router
        """Chooses the experts of the tokens of a prompt."""
        self._spec = spec
        self._neurons = spec.experts.d_ffn
        self.stride = header.stride
        """Bytes from a bundle to the next."""
        self._kernels = kernels
        self._counters = counters
        self._may_be_silent = spec.activation in SPARSE_ACTIVATIONS and not spec.experts.bias
        gate, up, down, *biases = header.bundle_parts
        # Gate and up lie one behind the other: a single matrix of twice the rows.
        self._gate_up_bytes, self._end = gate + up, gate + up + down
        self._bias_bytes = sum(biases)
        experts = spec.experts
        self._gates = Gates(experts.gate_slope, experts.gate_limit, experts.up_offset)
        self._rows = Stride.of(header.stride, gate // self._neurons, 2 * self._neurons)

    def room(self, count: int) -> Floats:
        """Memory for the outputs of `count` experts for one token: [count, d_model]."""
        return LARGE_ARRAYS.empty(count, self._spec.d_model)

    def outputs(
        self,
        layer: int,  # noqa: ARG002
        rows: NDArray[np.uint8],
        ids: Ids,  # noqa: ARG002
        positions: Ids,
        x: Floats,
        gate: Floats | None,  # noqa: ARG002
    ) -> Floats:
        """Outputs [n, d_model] of experts, at `positions` of `rows`, for `x` [d_model]."""
        if self._may_be_silent and self._rows is not None:
            hidden = self._without_silent(self._rows, rows, positions, x)
            return self._through_down(rows, positions, hidden)
        return self.of_pairs(rows, positions, x[None])

    def _without_silent(
        self, where: Stride, rows: NDArray[np.uint8], positions: Ids, x: Floats
    ) -> Floats:
        """What goes into down, [n, neurons]: up of the neurons alone whose gate is not zero.

        The same bits as `gated` of all: a silent neuron's output is zero whatever its up is.
        """
        gates = where.ids(positions, self._neurons)
        gate = np.empty((len(positions), self._neurons), dtype=np.float32)
        at = (rows, where.row_bytes, 0, self._spec.dtype)
        self._kernels.dot_rows(*at, gates, x, gate.reshape(-1))
        hidden = activate(self._spec, gate).reshape(-1)
        active = np.flatnonzero(hidden)
        up = np.empty(len(active), dtype=np.float32)
        self._kernels.dot_rows(*at, gates[active] + np.int32(self._neurons), x, up)
        hidden[active] *= up
        self._counters.neurons += len(hidden)
        self._counters.neurons_silent += len(hidden) - len(active)
        return hidden.reshape(gate.shape)

    def _through_down(self, rows: NDArray[np.uint8], positions: Ids, hidden: Floats) -> Floats:
        """[n, neurons] of n experts to [n, d_model]: the bits of one after another."""
        out = self.room(len(positions))
        begins = self._begins(positions) + self._gate_up_bytes
        self._kernels.matvec_each(rows, begins, self._spec.dtype, hidden, out)
        return out

    def _begins(self, positions: Ids) -> NDArray[np.int64]:
        """The first bytes of the experts at `positions`."""
        begins: NDArray[np.int64] = np.multiply(positions, self.stride, dtype=np.int64)
        return begins

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
        """`outputs` of experts, and `add`."""
        if self._spec.activation == "silu":
            self._apply(rows, positions, x[None], weights, out)
            return
        outputs = self.outputs(layer, rows, ids, positions, x, gate)
        self.add(rows, ids, positions, outputs, weights, out)

    def add(
        self,
        rows: NDArray[np.uint8],  # noqa: ARG002
        ids: Ids,  # noqa: ARG002
        positions: Ids,  # noqa: ARG002
        outputs: Floats,
        weights: Floats | None,
        out: Floats,
    ) -> None:
        """Add outputs [n, d_model], times their weights [n], to `out` [d_model] in their order."""
        assert weights is not None, "a router gives each expert one"
        one_token = np.zeros(len(outputs), dtype=np.int32)
        self.add_shares(outputs, weights, one_token, out[None])

    def of_pairs(self, rows: NDArray[np.uint8], positions: Ids, x: Floats) -> Floats:
        """Outputs of pairs of an expert and a token, [pairs, d_model] to the same.

        Pair i is the expert at `positions[i]` with token `x[i]`, or with the only one.
        """
        if self._spec.activation == "silu":
            return self._apply(rows, positions, x)
        both = LARGE_ARRAYS.empty(len(positions), 2 * self._neurons)
        self._kernels.matvec_each(rows, self._begins(positions), self._spec.dtype, x, both)
        biases = self._biases(rows, positions)
        if biases is not None:
            both += biases[:, : 2 * self._neurons]
        out = self._through_down(rows, positions, self._gated(both))
        if biases is not None:
            out += biases[:, 2 * self._neurons :]
        return out

    def _apply(
        self,
        rows: NDArray[np.uint8],
        positions: Ids,
        x: Floats,
        weights: Floats | None = None,
        total: Floats | None = None,
    ) -> Floats:
        """`of_pairs` in one call; with `weights` [pairs] also added to `total` [d_model]."""
        count, gates = len(positions), self._gates
        room, out = LARGE_ARRAYS.empty(count, 2 * self._neurons), self.room(count)
        self._kernels.apply_experts(
            rows, self._begins(positions), self._spec.dtype, self._bias_bytes > 0, gates.slope,
            gates.limit, gates.up_offset, x, room, out, weights, total,
        )  # fmt: skip
        return out

    def of_tokens(self, rows: NDArray[np.uint8], position: int, x: Floats) -> Floats:
        """Outputs of one expert for several tokens: [tokens, d_model] to the same."""
        dtype, neurons = self._spec.dtype, self._neurons
        gate_up, down = self._matrices(rows, position)
        both = LARGE_ARRAYS.empty(len(x), 2 * neurons)
        self._kernels.matmul(gate_up, dtype, x, both)
        biases = self._biases(rows, np.array([position], dtype=np.int32))
        if biases is not None:
            both += biases[:, : 2 * neurons]
        out = LARGE_ARRAYS.empty(*x.shape)
        self._kernels.matmul(down, dtype, self._gated(both), out)
        if biases is not None:
            out += biases[:, 2 * neurons :]
        return out

    def add_shares(self, shares: Floats, weights: Floats, tokens: Ids, sums: Floats) -> None:
        """Add outputs [n, d_model] of pairs, times their weights [n], to those of their tokens."""
        self._kernels.add_shares(shares, weights, tokens, sums)

    def _gated(self, both: Floats) -> Floats:
        """What goes into down: from gate and up, [n, 2 * neurons], to [n, neurons], a new array."""
        neurons = self._neurons
        return activate_times(self._spec, both[:, :neurons], both[:, neurons:], self._gates)

    def _biases(self, rows: NDArray[np.uint8], positions: Ids) -> Floats | None:
        """Those of gate, up and down of experts, [n, 2 * neurons + d_model]; None without any."""
        if not self._bias_bytes:
            return None
        starts = (position * self.stride + self._end for position in positions.tolist())
        biases: Floats = np.stack(
            [rows[start : start + self._bias_bytes] for start in starts]
        ).view(np.float32)
        return biases

    def _matrices(
        self, rows: NDArray[np.uint8], position: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The encoded gate and up [2 * neurons, d_model], and down [d_model, neurons]."""
        expert = rows[position * self.stride :][: self._end]
        return expert[: self._gate_up_bytes], expert[self._gate_up_bytes :]


@dataclass(frozen=True, slots=True)
class Stride:
    """Rows of experts by number, where experts are a whole number of rows apart."""

    row_bytes: int
    rows_apart: int
    """Rows of this size from an expert to the next."""
    first: Ids
    """The rows of the first expert."""

    @classmethod
    def of(cls, stride: int, row_bytes: int, rows: int) -> Stride | None:
        """For `rows` rows of an expert; None where the experts are not whole rows apart."""
        if stride % row_bytes:
            return None
        return cls(row_bytes, stride // row_bytes, np.arange(rows, dtype=np.int32))

    def ids(self, positions: Ids, count: int | None = None) -> Ids:
        """The rows of the experts at `positions`, one after another; of each the first `count`."""
        own = self.first[:count]
        ids: Ids = (positions[:, None] * np.int32(self.rows_apart) + own).reshape(-1)
        return ids


class ExpertTiles:
    """Adds a layer's experts to the outputs of tokens, each with the tokens that chose it."""

    def __init__(self, experts: Experts, x: Floats, weights: Floats) -> None:
        """For `x` [tokens, d_model]; `weights` [tokens, n_experts] are zero where not chosen."""
        self.weights = weights
        self._experts = experts
        self._vectors: Floats = x
        # All pairs of an expert and a token, expert by expert, of each in order of tokens.
        chosen, tokens = np.nonzero(weights.T)
        self._tokens = tokens.astype(np.int32)
        self._of_pair: Floats = weights[tokens, chosen]
        counts = np.bincount(chosen, minlength=weights.shape[1])
        self._counts: list[int] = counts.tolist()
        self._ends: list[int] = np.cumsum(counts).tolist()

    @property
    def tile(self) -> int:
        """Whole blocks are given: an expert is multiplied alone anyway."""
        return int(self.weights.shape[1])

    def add(self, tile: Block, out: Floats) -> Used:
        """Adds the experts of a tile to `out`; what is used of them are their weights."""
        ids, positions, rows = tile.parts()
        sums: Floats = out
        here = [
            (expert, position)
            for expert, position in zip(ids.tolist(), positions.tolist(), strict=True)
            if self._counts[expert]
        ]
        pairs = sum(self._counts[expert] for expert, _ in here)
        if pairs <= PAIRS_AN_EXPERT * len(here):
            self._add_pairs(here, rows, sums)
        else:
            for expert, position in here:
                own = self._own(expert)
                tokens = self._tokens[own]
                shares = self._experts.of_tokens(rows, position, self._vectors[tokens])
                self._experts.add_shares(shares, self._of_pair[own], tokens, sums)
        return lambda first: self.weights[first:, tile.columns]

    def _own(self, expert: int) -> slice:
        """The pairs of an expert."""
        end = self._ends[expert]
        return slice(end - self._counts[expert], end)

    def _add_pairs(
        self, here: Sequence[tuple[int, int]], rows: NDArray[np.uint8], sums: Floats
    ) -> None:
        """Adds experts and where they are in `rows`, all pairs at once."""
        if not here:  # all tokens chose others
            return
        numbers = [self._own(expert) for expert, _ in here]
        tokens = np.concatenate([self._tokens[own] for own in numbers])
        counts = [self._counts[expert] for expert, _ in here]
        positions = np.repeat(np.array([at for _, at in here], dtype=np.int32), counts)
        shares = self._experts.of_pairs(rows, positions, self._vectors[tokens])
        weights = np.concatenate([self._of_pair[own] for own in numbers])
        self._experts.add_shares(shares, weights, tokens, sums)
