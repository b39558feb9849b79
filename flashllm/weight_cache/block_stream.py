"""Layers read whole, in order, block by block: for prompts, and where every neuron is needed."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.errors import FlashllmError
from flashllm.flash.store import Store
from flashllm.system.clock import PartClock


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring bundles of one layer, in memory until the next block is asked for."""

    first: int
    raw: NDArray[np.uint8]  # [bundles, stride]

    def parts(self) -> tuple[Ids, Ids, NDArray[np.uint8]]:
        """One piece: ids of the bundles, their positions in the block, and the block's bytes."""
        positions = np.arange(len(self.raw), dtype=np.int32)
        return positions + np.int32(self.first), positions, self.raw.reshape(-1)

    def pieces(self, bundles: int) -> Iterator[Block]:
        """The block in pieces of up to `bundles` bundles."""
        for start in range(0, len(self.raw), bundles):
            yield Block(self.first + start, self.raw[start : start + bundles])


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for one block."""

    buffer: core.Buffer
    place: int  # in the buffer, bytes
    array: NDArray[np.uint8]  # [bundles, stride]


@dataclass(frozen=True, slots=True)
class _Read:
    """A block that is being read."""

    layer: int
    first: int
    room: int
    ticket: int


class BlockStream:
    """Reads layers from a bundle to their end, as far ahead as its ring of blocks allows.

    Reading ahead continues into the layers announced by `expect`, so that the device is busy while
    attention is computed. One caller at a time.
    """

    def __init__(self, store: Store, block_bytes: int, depth: int, clock: PartClock) -> None:
        """A block of `block_bytes` holds whole bundles; `depth` blocks have memory of their own."""
        assert block_bytes % store.header.stride == 0
        self._store = store
        self.block_bytes = block_bytes
        self._bundles = block_bytes // store.header.stride
        self._clock = clock
        self._n_bundles = store.header.bundles_per_layer
        self._stride = store.header.stride
        self._depth = depth
        self._rooms = [self._room(core.Buffer(block_bytes)) for _ in range(depth)]
        self._free = list(range(depth))
        self._ahead: deque[_Read] = deque()
        self._order: Iterator[tuple[int, int]] = iter(())

    def borrow(self, buffer: core.Buffer, places: Iterable[int]) -> None:
        """Adds blocks to the ring, at the byte offsets `places` of a buffer, until `give_back`."""
        self.give_back()
        self._rooms += [self._room(buffer, place) for place in places]
        self._free = list(range(len(self._rooms)))

    def give_back(self) -> None:
        """Removes the borrowed blocks from the ring; no read lands there any longer."""
        del self._rooms[self._depth :]
        self.drain()

    def _room(self, buffer: core.Buffer, place: int = 0) -> _Room:
        raw = buffer.array()[place : place + self.block_bytes]
        return _Room(buffer, place, raw.reshape(self._bundles, self._stride))

    def expect(self, layers: Iterable[tuple[int, int]]) -> None:
        """Begin to read these layers in this order, each from its first bundle on."""
        self.drain()
        self._order = self._blocks_of(layers)
        self._fill()

    def expects(self, layer: int, first: int = 0) -> bool:
        """Whether the next block is the one at `first` of a layer."""
        return bool(self._ahead) and (self._ahead[0].layer, self._ahead[0].first) == (layer, first)

    def blocks(self, layer: int, first: int = 0) -> Iterator[Block]:
        """The blocks of a layer from bundle `first` on; reads begin now unless they were expected.

        Waiting counts as the clock's "io_exposed", the caller's work as "ffn".
        """
        if first < self._n_bundles and not self.expects(layer, first):
            self.expect([(layer, first)])
        for start in range(first, self._n_bundles, self._bundles):
            read = self._ahead.popleft()
            assert (read.layer, read.first) == (layer, start)
            self._clock.switch("io_exposed")
            self._store.wait(read.ticket, layer)
            self._clock.switch("ffn")
            yield Block(start, self._rooms[read.room].array[: self._n_bundles - start])
            self._free.append(read.room)
            self._fill()

    def pinned_blocks(self, rows: NDArray[np.uint8]) -> Iterator[Block]:
        """The same blocks, of the pinned bundles `rows` [bundles, stride]."""
        for first in range(0, len(rows), self._bundles):
            yield Block(first, rows[first : first + self._bundles])

    def drain(self) -> None:
        """Wait for all reads; all blocks are free afterwards."""
        self._order = iter(())
        while self._ahead:
            read = self._ahead.popleft()
            # All reads are waited for; nobody needs to know whether one failed.
            with contextlib.suppress(FlashllmError):
                self._store.wait(read.ticket, read.layer)
        # The last block's too: a caller that stopped within a layer does not come back to it.
        self._free = list(range(len(self._rooms)))

    def close(self) -> None:
        """Drop the memory of the blocks; the store is closed, so that nothing is read into them."""
        self._order = iter(())
        self._ahead.clear()
        self._rooms.clear()
        self._free.clear()

    def _blocks_of(self, layers: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for layer, first in layers:
            for start in range(first, self._n_bundles, self._bundles):
                yield layer, start

    def _fill(self) -> None:
        while self._free:
            following = next(self._order, None)
            if following is None:
                return
            layer, first = following
            number = self._free.pop()
            room, count = self._rooms[number], min(self._bundles, self._n_bundles - first)
            ticket = self._store.submit_span(layer, first, count, room.buffer, room.place)
            self._ahead.append(_Read(layer, first, number, ticket))
