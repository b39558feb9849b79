"""The feed-forward layer for one token: select, fetch, compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flashllm.arrays import Ids
from flashllm.model.active_set_selectors import ActiveSet, Selector, Vector
from flashllm.model.neurons import FeedForwardWeights, Neurons
from flashllm.model.prefetchers import Prefetcher
from flashllm.spec import ModelSpec
from flashllm.system.clock import PartClock
from flashllm.weight_cache.pool import BundlePool


class FeedForwardDecode:
    """Feed-forward layers of a model over a pool of bundles, for a token at a time.

    Computes the bundles that the selector selects; without a selector, those whose output is not
    zero.
    """

    def __init__(
        self,
        spec: ModelSpec,
        pool: BundlePool,
        neurons: Neurons,
        weights: Sequence[FeedForwardWeights],
        clock: PartClock,
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._neurons = neurons
        self._weights = weights
        self._clock = clock
        self.selector: Selector | None = None
        self.prefetchers: list[Prefetcher] = []
        """Who guesses, or knows, what a layer will need before its turn."""
        self._chosen_early: dict[int, tuple[ActiveSet, Vector | None]] = {}

    def forget(self) -> None:
        """Forget the active sets that were chosen for a cancelled token."""
        self._chosen_early.clear()

    def token(self, layer: int, x: Tensor, before_norm: Tensor) -> Tensor:
        """[1, d_model] to [1, d_model]: the active bundles only, each times its weight.

        `before_norm` [1, d_model] is the input of the norm whose output is `x`; some selectors read
        it.
        """
        clock, neurons = self._clock, self._neurons
        clock.switch("predict")
        vector: Vector = x.contiguous().numpy()[0]
        out = np.zeros(self._spec.d_model, dtype=np.float32)
        early = self._chosen_early.pop(layer, None)
        active, gate = early or self.active_set(layer, x, before_norm)
        for number, found in enumerate(self._pool.rounds(layer, active.ids)):
            if number == 0:
                for prefetcher in self.prefetchers:
                    prefetcher.after_reads_began(layer, found.reads, before_norm)
            outputs = np.empty(len(found.ids), dtype=np.float32)
            for part in found.arrivals:
                clock.switch("ffn")
                ids = found.ids[part]
                outputs[part] = neurons.outputs(
                    layer, found.rows, ids, found.positions[part], vector, _of(gate, ids)
                )
            clock.switch("ffn")
            if active.weights is not None:
                outputs *= active.weights_of(found.ids)
            neurons.add(found.rows, found.ids, found.positions, outputs, out)
        return self._weights[layer].with_down_bias(torch.from_numpy(out)[None])

    def active_set(
        self, layer: int, x: Tensor, before_norm: Tensor
    ) -> tuple[ActiveSet, Vector | None]:
        """The active set of a token in a layer, and its resident gate's outputs [d_ffn], if any."""
        gate = self._weights[layer].gate_outputs(self._spec, x)
        reads_before = self.selector is not None and self.selector.before_norm
        read: Vector = (before_norm if reads_before else x).contiguous().numpy()[0]
        return self._select(layer, read, gate), gate

    def choose_early(self, layer: int, x: Tensor, before_norm: Tensor) -> Ids:
        """Choose the active set before the layer's turn, where its input is already known."""
        self._clock.switch("predict")
        self._chosen_early[layer] = self.active_set(layer, x, before_norm)
        return self._chosen_early[layer][0].ids

    def choose(self, layer: int, x: Tensor) -> Ids:
        """Ids that the selector selects for its input [1, d_model]."""
        gate = self._weights[layer].gate_outputs(self._spec, x)
        return self._select(layer, x.contiguous().numpy()[0], gate).ids

    def _select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:
        if self.selector is not None:
            return self.selector.select(layer, x, gate)
        # The oracle: from the whole layer, by the kernel that computes them.
        found = []
        for block in self._pool.blocks(layer):
            self._clock.switch("ffn")
            ids, positions, rows = block.parts()
            outputs = self._neurons.outputs(layer, rows, ids, positions, x, _of(gate, ids))
            found.append(ids[outputs != 0])
        return ActiveSet(np.concatenate(found))


def _of(gate: Vector | None, ids: Ids) -> Vector | None:
    """The resident gate's outputs of these neurons; None without a resident gate."""
    return None if gate is None else gate[ids]
