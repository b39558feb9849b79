"""What every pool of bundles answers, whether it pins them, has slots for them or streams them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Ids
from flashllm.weight_cache.block_stream import Block
from flashllm.weight_cache.counters import StreamCounters
from flashllm.weight_cache.policies import Uses

Part = NDArray[np.bool_] | slice
"""Some of a round's bundles: a mask over its ids, or a slice of them."""
Marks = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """How the bundles of a round came to be in memory."""

    loaded: int = 0
    """Read for this token, ahead of its need or not."""
    prefetched: int = 0
    """Read ahead of the layer's turn, needed or not."""
    prefetched_used: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """Bundles of one layer that are in memory together, or on their way there."""

    ids: Ids  # ascending
    positions: Ids  # of each bundle in `rows`, in units of the stride
    rows: NDArray[np.uint8]
    arrivals: Iterator[Part]
    """Parts as they are there, each bundle in one of them; to be taken to the end."""
    reads: ReadCounts = ReadCounts()


class BundlePool(Protocol):
    """Bundles of all layers in DRAM. One caller at a time, `marks` apart.

    Whoever waits for reads in here puts that time down to the clock's "io_exposed".
    """

    counters: StreamCounters
    token: int
    """Number of the next token."""

    @property
    def prefetches(self) -> bool:
        """Whether `prefetch` does anything."""

    def rounds(self, layer: int, ids: Ids) -> Iterator[Round]:
        """Ascending `ids` in pieces that fit; reads of a round have begun when it is given."""

    def prefetch(self, layer: int, ids: Ids) -> None:
        """Begin to read what a later `rounds` of the layer is likely to need, likeliest first."""

    def blocks(self, layer: int) -> Iterator[Block]:
        """All bundles of a layer in order, always cut into the same blocks."""

    def expect(self, layers: Iterable[int]) -> None:
        """`blocks` of these layers come, in this order: begin to read them."""

    def end_expecting(self) -> None:
        """Let reads that nobody waits for end; what `expect` took for them is given back."""

    def seed(
        self, layer: int, ids: Ids, used: Uses, last_token: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Places for bundles that a prompt used, whose bytes the caller copies there.

        `ids` [n]; `used` [tokens, n] by which tokens, the last of them number `last_token`.
        Returns (positions into `ids` that got a place, their positions in the pool, its rows).
        """

    def marks(self, layer: int) -> Marks:
        """Which bundles [n] are in DRAM, which the last token found there, which it had read."""

    def clear(self) -> None:
        """Start over: the next token is the first."""

    def drain(self) -> None:
        """Let reads that nobody will wait for end."""

    def advance(self, tokens: int = 1) -> None:
        """`tokens` tokens have passed."""
