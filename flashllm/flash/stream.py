"""The slot pool: active sets in, slots that hold their bundles out.

Goals: one allocation for the life of a model; reads land where they are computed from; nothing
resident is moved. Not here: which bundles are active, and what is computed from them.
Threads: one caller at a time; `cancel` of the reader may come from anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.flash import core
from flashllm.flash.policies import Uses, make_policy
from flashllm.flash.store import Store
from flashllm.flash.window import Claim, Ids, LayerWindow

BLOCK_IDS = 64
"""Ids of a block of summation. Partial sums are taken over fixed blocks of ids and added in
order, so a sum does not depend on what was resident or on how a layer was cut into passes."""


def smallest_slots(n_bundles: int) -> int:
    """Slots that a layer needs at least: one block's bundles."""
    return min(BLOCK_IDS, n_bundles)


def block_ends(ids: Ids) -> Ids:
    """Ends of the runs of ascending `ids` that lie in the same block; the last is `len(ids)`."""
    inner = np.flatnonzero(np.diff(ids // BLOCK_IDS)) + 1
    return np.append(inner, len(ids)).astype(np.int32)


def passes(ids: Ids, n_slots: int) -> list[Ids]:
    """Ascending `ids`, cut at blocks so that each piece fits into `n_slots`."""
    if len(ids) <= n_slots:
        return [ids]
    pieces, start, end = [], 0, 0
    for block_end in block_ends(ids).tolist():
        if block_end - start > n_slots:
            pieces.append(ids[start:end])
            start = end
        end = block_end
    pieces.append(ids[start:end])
    return pieces


@dataclass(slots=True)
class StreamCounters:
    """What the slot pool did, counted since it was made."""

    hits: int = 0
    misses: int = 0
    passes: int = 0
    """Extra passes, over layers whose active set did not fit into their slots."""
    spilled: int = 0
    """Bundles given up only because others needed their slots."""

    def since(self, earlier: StreamCounters) -> StreamCounters:
        """The difference to an earlier copy."""
        return StreamCounters(
            *(
                getattr(self, f.name) - getattr(earlier, f.name)
                for f in dataclasses.fields(StreamCounters)
            )
        )

    def copy(self) -> StreamCounters:
        """The counts as they are now."""
        return dataclasses.replace(self)


class SlotPool:
    """Slots for the bundles of all layers, with a policy for each layer."""

    def __init__(
        self, store: Store, slots_per_layer: Sequence[int], policy: str, window: int
    ) -> None:
        """`policy` is one of POLICIES; `window` in tokens is for the paper's."""
        n_bundles = store.header.bundles_per_layer
        self._store = store
        self._stride = store.header.stride
        self._layers = [
            LayerWindow(n_bundles, slots, make_policy(policy, n_bundles, window))
            for slots in slots_per_layer
        ]
        starts = np.concatenate([[0], np.cumsum(slots_per_layer)])
        self._starts: list[int] = [int(start) for start in starts]
        self._buffer = core.Buffer(self._starts[-1] * self._stride)
        self.rows: NDArray[np.uint8] = self._buffer.array()
        self.counters = StreamCounters()
        self.token = 0
        """Number of the next token."""

    @property
    def stride(self) -> int:
        """Bytes between the slots."""
        return self._stride

    @property
    def address(self) -> int:
        """Where the pool lies in memory; it never changes."""
        return int(self._buffer.address)

    def layer(self, index: int) -> LayerWindow:
        """The window of one layer."""
        return self._layers[index]

    def clear(self) -> None:
        """Start over: nothing is resident."""
        self.token = 0
        for layer in self._layers:
            layer.clear()

    def advance(self, tokens: int = 1) -> None:
        """`tokens` tokens have passed: the window slides on."""
        self.token += tokens

    def passes(self, layer: int, ids: Ids) -> list[Ids]:
        """The active set, cut into pieces that fit; more than one is counted."""
        pieces = passes(ids, self._layers[layer].n_slots)
        self.counters.passes += len(pieces) - 1
        return pieces

    def claim(self, layer: int, ids: Ids) -> Claim:
        """Decide which slots the bundles get; `fetch` has to follow."""
        claim = self._layers[layer].claim(ids, self.token)
        missing = int(np.count_nonzero(claim.missing))
        self.counters.misses += missing
        self.counters.hits += len(ids) - missing
        self.counters.spilled += claim.spilled
        return claim

    def fetch(self, layer: int, claim: Claim) -> Ids:
        """Read what is missing; positions in the pool, in units of the stride, of `claim.ids`."""
        positions: Ids = claim.slots + np.int32(self._starts[layer])
        if claim.missing.any():
            destinations = positions[claim.missing].astype(np.int64) * self._stride
            try:
                self._store.read_bundles(
                    layer, claim.ids[claim.missing], self._buffer, destinations
                )
            except BaseException:
                self._layers[layer].disown(claim)
                raise
        return positions

    def seed(
        self, layer: int, ids: Ids, used: Uses, last_token: int, bundles: NDArray[np.uint8]
    ) -> None:
        """Keep bundles that a prompt used, copied from where they were read.

        `ids` [n]; `used` [tokens, n] by which tokens, the last of them number `last_token`;
        `bundles` [n, stride].
        """
        kept, slots = self._layers[layer].place(ids, used, last_token)
        start = self._starts[layer]
        pool = self.rows.reshape(-1, self._stride)
        pool[start + slots] = bundles[kept]
