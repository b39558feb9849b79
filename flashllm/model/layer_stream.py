"""Layers read whole, in order, block by block: for prompts, and where every neuron is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.accounting import PartClock
from flashllm.flash import core
from flashllm.flash.store import Store


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring bundles of one layer, in memory until the next block is asked for."""

    first: int
    raw: NDArray[np.uint8]  # [bundles, stride]


class LayerStream:
    """Reads layers from a bundle on to their end, always one block ahead."""

    def __init__(self, store: Store, bundles: int, clock: PartClock) -> None:
        self._store = store
        self._bundles = bundles
        self._clock = clock
        stride = store.header.stride
        self._buffers = [core.Buffer(bundles * stride) for _ in range(2)]
        self._arrays = [buffer.array().reshape(bundles, stride) for buffer in self._buffers]
        self._turn = 0
        self._ahead: tuple[int, int, int] | None = None  # layer, first bundle, ticket

    def blocks(
        self, layer: int, first: int = 0, following: tuple[int, int] | None = None
    ) -> Iterator[Block]:
        """The blocks of a layer from bundle `first`; `following` (layer, first bundle) is begun.

        Time spent waiting goes to the clock's "io_exposed", the caller's to "ffn".
        """
        n_bundles = self._store.header.bundles_per_layer
        if first < n_bundles:
            self.begin(layer, first)
        elif following is not None:
            self.begin(*following)
        for start in range(first, n_bundles, self._bundles):
            assert self._ahead is not None
            ticket = self._ahead[2]
            self._ahead = None
            self._clock.switch("io_exposed")
            self._store.wait(ticket, layer)
            self._clock.switch("ffn")
            rows = self._arrays[self._turn][: min(self._bundles, n_bundles - start)]
            self._turn = 1 - self._turn
            if start + self._bundles < n_bundles:
                self._submit(layer, start + self._bundles)
            elif following is not None:
                self.begin(*following)
            yield Block(start, rows)

    def begin(self, layer: int, first: int = 0) -> None:
        """Begin to read the block at `first`, unless that is under way or beyond the layer."""
        if first >= self._store.header.bundles_per_layer:
            return
        if self._ahead is None or self._ahead[:2] != (layer, first):
            self.drain()
            self._submit(layer, first)

    def drain(self) -> None:
        """Let what was begun end, wanted or not: its buffer is free afterwards."""
        if self._ahead is not None:
            layer, _, ticket = self._ahead
            self._ahead = None
            self._store.wait(ticket, layer)

    def _submit(self, layer: int, first: int) -> None:
        count = min(self._bundles, self._store.header.bundles_per_layer - first)
        ticket = self._store.submit_span(layer, first, count, self._buffers[self._turn])
        self._ahead = (layer, first, ticket)
