"""The interface of bundle pools, whether they pin bundles, keep them in slots or stream them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Ids
from flashllm.weight_cache.block_stream import Block
from flashllm.weight_cache.counters import StreamCounters
from flashllm.weight_cache.policies import Uses

Part = NDArray[np.bool_] | slice
"""Some bundles of a round: a mask over its ids, or a slice of them."""
EVERYTHING = slice(None)
"""The part that is all bundles of a round."""
Marks = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


class ReadCounts(NamedTuple):
    """How many bundles of a round were read, and how many of them early."""

    loaded: int = 0
    """Bundles read for this token, prefetched or not."""
    prefetched: int = 0
    """Bundles prefetched before the layer's turn, needed or not."""
    prefetched_used: int = 0


class Round(NamedTuple):
    """Bundles of one layer that are in memory together, or being read."""

    ids: Ids  # ascending
    positions: Ids  # of each bundle in `rows`, in units of the stride
    rows: NDArray[np.uint8]
    arrivals: Iterator[Part]
    """Yields each bundle once, in parts, as reads complete; must be iterated to the end."""
    reads: ReadCounts = ReadCounts()


class BundlePool(Protocol):
    """Bundles of all layers in DRAM. One caller at a time, except for `marks`.

    Time spent waiting for reads counts as the clock's "io_exposed".
    """

    counters: StreamCounters
    token: int
    """Number of the next token."""

    @property
    def prefetches(self) -> bool:
        """Whether `prefetch` does anything."""

    def rounds(self, layer: int, ids: Ids) -> Iterator[Round]:
        """Ascending `ids` in rounds that fit; a round's reads have begun when it is yielded."""

    def prefetch(self, layer: int, ids: Ids, is_certain: bool = False) -> None:
        """Begin to read `ids` that the layer is likely to need later, most likely first.

        They are needed for certain, or large bundles are read behind all else.
        """

    def blocks(self, layer: int) -> Iterator[Block]:
        """All bundles of a layer in order, always cut into the same blocks."""

    def expect(self, layers: Iterable[int], spare_bytes: int = 0) -> None:
        """Begin to read these layers, whose `blocks` are called next, in this order.

        So much memory besides may be used until `end_expecting`.
        """

    def end_expecting(self) -> None:
        """Wait for unneeded reads that `expect` began; memory lent for them is returned."""

    def seed(
        self, layer: int, ids: Ids, used: Uses, last_token: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Slots for bundles that a prompt used; the caller copies their bytes there.

        `used` [tokens, n] says which tokens used which of `ids` [n]; the last is number
        `last_token`. Returns (positions into `ids` that got a slot, their positions in the pool,
        its rows).
        """

    @property
    def may_hold_more(self) -> bool:
        """Whether each bundle of the model has a slot, and some are not there yet."""

    @property
    def is_nearly_full(self) -> bool:
        """Whether hardly a slot is free, so that most of what tokens use is there."""

    def valuable(self, layer: int) -> Ids:
        """Bundles in the slots of a layer, those first that its policy keeps longest."""

    def free_slots(self, layer: int) -> int:
        """Slots of a layer that hold nothing, and that `fill` may use."""

    def fill(
        self, layer: int, ids: Ids, uses: NDArray[np.int64], most: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Free slots for at most `most` of `ids` that have none; the caller copies, as for `seed`.

        `uses` [n]: those of the most come first. Nothing is evicted for them.
        """

    def marks(self, layer: int) -> Marks:
        """Which bundles [n] are in DRAM, which the last token found there, and which it read."""

    def clear(self) -> None:
        """Start over: the next token is the first."""

    def drain(self) -> None:
        """Wait for reads that nobody else will wait for."""

    def resize(self, bundles_per_layer: Sequence[int]) -> None:
        """Keep at most so many bundles of each layer from now on, between two calls.

        At most as many as the pool was made for. Memory of the others is given back to the system.
        """

    def advance(self, tokens: int = 1) -> None:
        """`tokens` tokens have passed."""

    def close(self) -> None:
        """Drop the memory of the bundles, into which nothing is read any longer."""
