"""The feed-forward layer for one token: select, fetch, compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Ids
from flashllm.large_arrays import Floats
from flashllm.model.active_set_selectors import ActiveSet, Selector, Vector
from flashllm.model.layer_inputs import LayerInputs, Reads
from flashllm.model.neurons import FeedForwardWeights
from flashllm.model.prefetchers import Prefetcher
from flashllm.spec import ModelSpec
from flashllm.system.clock import PartClock
from flashllm.weight_cache.pool import EVERYTHING, BundlePool, Round


class BundleOutputs(Protocol):
    """What computes the outputs of bundles for one token: of each a number, or a vector."""

    def room(self, count: int) -> Vector:
        """Memory for the outputs of `count` bundles, [count] or [count, d_model]."""
        ...

    def outputs(
        self,
        layer: int,
        rows: NDArray[np.uint8],
        ids: Ids,
        positions: Ids,
        x: Vector,
        gate: Vector | None,
    ) -> Vector:
        """Outputs of the bundles `ids`, at `positions` of `rows`, for `x` [d_model].

        `gate` [n] holds the outputs of their resident gate.
        """
        ...

    def add_outputs(
        self,
        layer: int,
        rows: NDArray[np.uint8],
        ids: Ids,
        positions: Ids,
        x: Vector,
        gate: Vector | None,
        weights: Vector | None,
        out: Vector,
    ) -> None:
        """`outputs` of bundles that are all there, and `add`."""
        ...

    def add(
        self,
        rows: NDArray[np.uint8],
        ids: Ids,
        positions: Ids,
        outputs: Vector,
        weights: Vector | None,
        out: Vector,
    ) -> None:
        """Add what the outputs of ascending `ids` amount to, in this order, to `out` [d_model].

        Each times its weight [n], if there are any.
        """
        ...


class FeedForwardDecode:
    """Feed-forward layers of a model over a pool of bundles, for a token at a time.

    Layers are counted from the first that has bundles.

    Computes the bundles that the selector selects; without a selector, those whose output is not
    zero.
    """

    def __init__(
        self,
        spec: ModelSpec,
        pool: BundlePool,
        bundles: BundleOutputs,
        weights: Sequence[FeedForwardWeights],
        clock: PartClock,
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._bundles = bundles
        self._weights = weights
        self._clock = clock
        self.selector: Selector | None = None
        self.prefetchers: list[Prefetcher] = []
        """Who guesses, or knows, what a layer will need before its turn."""
        self._chosen_early: dict[int, tuple[ActiveSet, Vector | None]] = {}

    def forget(self) -> None:
        """Forget the active sets that were chosen for a cancelled token."""
        self._chosen_early.clear()

    def token(self, layer: int, inputs: LayerInputs) -> Floats:
        """[1, d_model] to [1, d_model]: the active bundles only, each times its weight."""
        clock, weights = self._clock, self._weights[layer]
        clock.switch("predict")
        vector: Vector = inputs.ffn[0]
        out = np.zeros(self._spec.d_model, dtype=np.float32)
        early = self._chosen_early.pop(layer, None)
        active, gate = early or self.active_set(layer, inputs)
        beside: Floats | None = None
        is_first = True
        for found in self._pool.rounds(layer, active.ids):
            if is_first:
                is_first = False
                for prefetcher in self.prefetchers:
                    prefetcher.after_reads_began(layer, found.reads, inputs.stream)
                clock.switch("ffn")
                beside = weights.beside(inputs.ffn)
            self._add_round(layer, found, vector, gate, active.weights_of(found.ids), out)
        if is_first:
            beside = weights.beside(inputs.ffn)
        result = out[None]
        if beside is not None:
            result += beside
        return result

    def _add_round(
        self,
        layer: int,
        found: Round,
        x: Vector,
        gate: Vector | None,
        weights: Vector | None,
        out: Vector,
    ) -> None:
        """Adds the bundles of a round, in their order."""
        bundles, rows, outputs = self._bundles, found.rows, None
        for part in found.arrivals:
            self._clock.switch("ffn")
            if part is EVERYTHING:
                ids = found.ids
                where = layer, rows, ids, found.positions
                bundles.add_outputs(*where, x, _of(gate, ids), weights, out)
                continue
            if outputs is None:
                outputs = bundles.room(len(found.ids))
            ids = found.ids[part]
            outputs[part] = bundles.outputs(
                layer, rows, ids, found.positions[part], x, _of(gate, ids)
            )
        self._clock.switch("ffn")
        if outputs is not None:
            bundles.add(rows, found.ids, found.positions, outputs, weights, out)

    def active_set(self, layer: int, inputs: LayerInputs) -> tuple[ActiveSet, Vector | None]:
        """The active set of a token in a layer, and its resident gate's outputs [d_ffn], if any."""
        gate = self._weights[layer].gate_outputs(self._spec, inputs.ffn)
        reads: Reads = "ffn" if self.selector is None else self.selector.reads
        read: Vector = inputs.of(reads)[0]
        return self._select(layer, read, gate), gate

    def choose_early(self, layer: int, inputs: LayerInputs) -> Ids:
        """Choose the active set before the layer's turn, where what it reads is already known."""
        self._clock.switch("predict")
        self._chosen_early[layer] = self.active_set(layer, inputs)
        return self._chosen_early[layer][0].ids

    def choose(self, layer: int, x: Floats) -> Ids:
        """Ids that the selector selects for its input [1, d_model]."""
        gate = self._weights[layer].gate_outputs(self._spec, x)
        return self._select(layer, np.ascontiguousarray(x)[0], gate).ids

    def _select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:
        if self.selector is not None:
            return self.selector.select(layer, x, gate)
        # The oracle: from the whole layer, by the kernel that computes them.
        found = []
        for block in self._pool.blocks(layer):
            self._clock.switch("ffn")
            ids, positions, rows = block.parts()
            outputs = self._bundles.outputs(layer, rows, ids, positions, x, _of(gate, ids))
            found.append(ids[outputs != 0])
        return ActiveSet(np.concatenate(found))


def _of(gate: Vector | None, ids: Ids) -> Vector | None:
    """The resident gate's outputs of these neurons; None without a resident gate."""
    return None if gate is None else gate[ids]
