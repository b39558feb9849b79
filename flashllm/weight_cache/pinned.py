"""Bundles that stay in DRAM where every token needs every neuron, and no window could help.

The first bundles of each layer are pinned, as many as the ceiling allows; the rest is streamed.
A cache that replaced what it held would lose each bundle just before it is needed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.flash.store import Store
from flashllm.weight_cache.counters import StreamCounters

_READ_BUNDLES_BYTES = 64 << 20


class PinnedBundles:
    """The first `pinned_per_layer[i]` bundles of each layer, read once."""

    def __init__(self, store: Store, pinned_per_layer: Sequence[int]) -> None:
        self._store = store
        self._stride = store.header.stride
        self._counts = tuple(pinned_per_layer)
        starts = np.concatenate([[0], np.cumsum(self._counts)])
        self._starts: list[int] = [int(start) for start in starts]
        self._buffer = core.Buffer(max(self._starts[-1] * self._stride, 1))
        self.counters = StreamCounters()
        self.token = 0
        """Number of the next token."""
        self._load()

    @property
    def address(self) -> int:
        """Where the bundles lie in memory; it never changes."""
        return int(self._buffer.address)

    def count(self, layer: int) -> int:
        """Bundles of a layer that are pinned."""
        return self._counts[layer]

    def rows(self, layer: int) -> NDArray[np.uint8]:
        """The pinned bundles of a layer, [count, stride]."""
        pool = self._buffer.array()[: self._starts[-1] * self._stride].reshape(-1, self._stride)
        return pool[self._starts[layer] : self._starts[layer + 1]]

    def marks(self, layer: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Which bundles [n] are pinned, and which the last token found so, and had read.

        Each token needs them all, so what is not pinned was read.
        """
        resident = np.arange(self._store.header.bundles_per_layer) < self._counts[layer]
        used = np.full_like(resident, self.token > 0)
        return resident, resident & used, ~resident & used

    def clear(self) -> None:
        """Start over; what is pinned stays."""
        self.token = 0

    def drain(self) -> None:
        """Nothing is under way here."""

    def advance(self, tokens: int = 1) -> None:
        """`tokens` tokens have passed."""
        self.token += tokens

    def _load(self) -> None:
        step = max(_READ_BUNDLES_BYTES // self._stride, 1)
        for layer, count in enumerate(self._counts):
            for first in range(0, count, step):
                place = (self._starts[layer] + first) * self._stride
                bundles = min(step, count - first)
                ticket = self._store.submit_span(layer, first, bundles, self._buffer, place)
                self._store.wait(ticket, layer)
