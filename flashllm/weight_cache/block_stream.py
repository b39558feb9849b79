"""Layers that are needed whole, in order, block by block: what is in DRAM already is not read."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.errors import FlashllmError
from flashllm.flash.store import Store
from flashllm.system.clock import PartClock
from flashllm.weight_cache.rounds import split_rounds


@dataclass(frozen=True, slots=True)
class Block:
    """Bundles of one layer, mostly neighbours, in memory until the next block is asked for."""

    first: int
    rows: NDArray[np.uint8]
    """Memory that holds them, in bytes; what else is there is somebody else's."""
    positions: Ids
    """Of each bundle in `rows`, in units of the stride."""
    stride: int
    some: Ids | None = None
    """Ids of the bundles, ascending, where they are no neighbours."""

    @classmethod
    def of(cls, first: int, raw: NDArray[np.uint8]) -> Block:
        """The bundles `raw` [bundles, stride], which lie one after another."""
        positions = np.arange(len(raw), dtype=np.int32)
        return cls(first, raw.reshape(-1), positions, raw.shape[1])

    def __len__(self) -> int:
        return len(self.positions)

    def parts(self) -> tuple[Ids, Ids, NDArray[np.uint8]]:
        """One piece: ids of the bundles, their positions in the rows, and the rows."""
        ids = self.some
        if ids is None:
            ids = np.arange(self.first, self.first + len(self), dtype=np.int32)
        return ids, self.positions, self.rows

    @property
    def columns(self) -> slice | Ids:
        """What of an array with a column for each bundle of the layer is about these."""
        return slice(self.first, self.first + len(self)) if self.some is None else self.some

    def positions_of(self, ids: Ids) -> Ids:
        """Positions of some of its bundles, by their ids."""
        some = self.some
        found: Ids = self.positions[
            ids - np.int32(self.first) if some is None else np.searchsorted(some, ids)
        ]
        return found

    def pieces(self, bundles: int) -> Iterator[Block]:
        """The block in pieces of up to `bundles` bundles, cut between blocks of summation."""
        if self.some is not None:
            end = 0
            for ids in split_rounds(self.some, bundles):
                start, end = end, end + len(ids)
                yield Block(int(ids[0]), self.rows, self.positions[start:end], self.stride, ids)
            return
        for start in range(0, len(self), bundles):
            positions = self.positions[start : start + bundles]
            yield Block(self.first + start, self.rows, positions, self.stride)

    def raw(self) -> NDArray[np.uint8] | None:
        """The bundles [bundles, stride], if they lie one after another; else None."""
        first = int(self.positions[0])
        if not np.array_equal(self.positions, np.arange(first, first + len(self))):
            return None
        place = self.rows[first * self.stride : (first + len(self)) * self.stride]
        return place.reshape(-1, self.stride)


class Held(Protocol):
    """Bundles that are in DRAM, of which the stream asks before it reads."""

    def rows_of(self, layer: int) -> NDArray[np.uint8]:
        """Memory that holds those of a layer, in bytes."""

    def positions(self, layer: int, first: int, count: int) -> Ids:
        """Of `count` bundles from `first` on, in units of the stride; -1 where one is not held."""

    @property
    def buffer(self) -> core.Buffer:
        """The same memory, to be read into."""

    def stay(self, layer: int) -> bool:
        """Whether what is held of a layer stays there until all of its blocks are computed."""

    def place(self, layer: int, first: int, count: int) -> int | None:
        """Where `count` bundles may be read to and stay, in bytes; None if there is no such place.

        Nobody else uses it until the layer's blocks are computed.
        """

    def keep(self, layer: int, first: int, count: int) -> None:
        """The bundles have arrived in the place that they were given."""


class BlockCopy(Protocol):
    """Copies blocks of some layers to where they are computed."""

    layers: int
    """The first layers, of which it does."""

    def take(self, block: Block) -> Block:
        """The copy, which stays until the next block is taken."""


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for one block."""

    buffer: core.Buffer
    place: int  # in the buffer, bytes
    array: NDArray[np.uint8]  # [bundles, stride]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A block that is being read, or of which all bundles are held."""

    layer: int
    first: int
    room: int | None
    """None where the bundles are computed with where they are held."""
    tickets: list[int]
    stays: bool = False
    """Whether it is read to where it will be held."""


class BlockStream:
    """Reads layers from a bundle to their end, as far ahead as its ring of blocks allows.

    Reading ahead continues into the layers announced by `expect`, so that the device is busy while
    attention is computed. Of a block that is `held` in part only the rest is read: what is held is
    copied beside it at once, since it may be evicted before its turn. A block that may stay is read
    to where it will be held. One caller at a time.
    """

    def __init__(
        self,
        store: Store,
        block_bytes: int,
        depth: int,
        clock: PartClock,
        kernels: core.Kernels,
    ) -> None:
        """A block of `block_bytes` holds whole bundles; `depth` blocks have memory of their own.

        `kernels` copy what is held in part.
        """
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
        self._ahead: deque[_Ahead] = deque()
        self._order: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None
        """The first block that is not ahead yet."""
        self._kernels = kernels
        self.held: Held | None = None
        """What is in DRAM besides the ring."""
        self.copy: BlockCopy | None = None
        """Where blocks of some layers are computed, if that is not in the ring."""

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
        self._next = next(self._order, None)
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
            ahead = self._ahead.popleft()
            assert (ahead.layer, ahead.first) == (layer, start)
            self._clock.switch("io_exposed")
            self._store.wait_bundles(layer, ahead.tickets)
            if ahead.stays and self.held is not None:
                self.held.keep(layer, start, self._count(start))
            self._clock.switch("ffn")
            block = self._block(ahead)
            if self.copy is not None and layer < self.copy.layers and ahead.room is not None:
                block = self.copy.take(block)
            yield block
            if ahead.room is not None:
                self._free.append(ahead.room)
            self._fill()

    def begun(self, layer: int) -> int:
        """How many bundles of a layer, from its first on, are on their way or have been copied.

        Nothing of them is taken from slots that may be used otherwise, nor read any more.
        """
        if self._next is None or self._next[0] != layer:
            return self._n_bundles
        return self._next[1]

    def pinned_blocks(self, rows: NDArray[np.uint8]) -> Iterator[Block]:
        """The same blocks, of the pinned bundles `rows` [bundles, stride]."""
        for first in range(0, len(rows), self._bundles):
            yield Block.of(first, rows[first : first + self._bundles])

    def blocks_in(self, rows: NDArray[np.uint8], start: int, count: int) -> Iterator[Block]:
        """The same blocks, of bundles that lie in `rows` from bundle number `start` on."""
        for first in range(0, count, self._bundles):
            many = min(self._bundles, count - first)
            positions = np.arange(start + first, start + first + many, dtype=np.int32)
            yield Block(first, rows, positions, self._stride)

    def drain(self) -> None:
        """Wait for all reads; all blocks are free afterwards."""
        self._forget_order()
        while self._ahead:
            ahead = self._ahead.popleft()
            # All reads are waited for; nobody needs to know whether one failed.
            with contextlib.suppress(FlashllmError):
                self._store.wait_bundles(ahead.layer, ahead.tickets)
        # The last block's too: a caller that stopped within a layer does not come back to it.
        self._free = list(range(len(self._rooms)))

    def close(self) -> None:
        """Drop the memory of the blocks; the store is closed, so that nothing is read into them."""
        self._forget_order()
        self.held = self.copy = None
        self._ahead.clear()
        self._rooms.clear()
        self._free.clear()

    def _blocks_of(self, layers: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for layer, first in layers:
            for start in range(first, self._n_bundles, self._bundles):
                yield layer, start

    def _forget_order(self) -> None:
        self._order = iter(())
        self._next = None

    def _fill(self) -> None:
        """Begins to read what follows, while there is room for it."""
        # Blocks that are held need no room; without a limit the whole prompt would be ahead.
        while self._next is not None and len(self._ahead) < max(len(self._rooms), 1):
            layer, first = self._next
            ahead = self._where_held(layer, first)
            if ahead is None:
                if not self._free:
                    return
                number = self._free.pop()
                ahead = _Ahead(layer, first, number, self._begin(layer, first, self._rooms[number]))
            self._ahead.append(ahead)
            self._next = next(self._order, None)

    def _count(self, first: int) -> int:
        return min(self._bundles, self._n_bundles - first)

    def _positions(self, layer: int, first: int) -> Ids | None:
        """Where the bundles of a block are held; None where none is."""
        if self.held is None:
            return None
        positions = self.held.positions(layer, first, self._count(first))
        return positions if (positions >= 0).any() else None

    def _where_held(self, layer: int, first: int) -> _Ahead | None:
        """A block that is computed with where it is held, or will be; None for another."""
        if self.held is None or not self.held.stay(layer):
            return None
        positions = self._positions(layer, first)
        if positions is not None:
            return _Ahead(layer, first, None, []) if (positions >= 0).all() else None
        # The same block of the chunk before may be on its way there.
        is_under_way = any((one.layer, one.first) == (layer, first) for one in self._ahead)
        count = self._count(first)
        place = None if is_under_way else self.held.place(layer, first, count)
        if place is None:
            return None
        ticket = self._store.submit_span(layer, first, count, self.held.buffer, place)
        return _Ahead(layer, first, None, [ticket], stays=True)

    def _begin(self, layer: int, first: int, room: _Room) -> list[int]:
        """Fills a room: begins to read what is not held, and copies what is; tickets."""
        store, stride = self._store, self._stride
        positions = self._positions(layer, first)
        if positions is None:
            return [store.submit_span(layer, first, self._count(first), room.buffer, room.place)]
        missing = np.flatnonzero(positions < 0).astype(np.int32)
        tickets: list[int] = []
        if len(missing):
            places = room.place + missing.astype(np.int64) * stride
            tickets = store.submit_bundles(
                layer, missing + np.int32(first), room.buffer, places, spans_gaps=False
            )
        here = np.flatnonzero(positions >= 0).astype(np.int32)
        assert self.held is not None
        self._kernels.copy_rows(
            self.held.rows_of(layer), positions[here], stride, room.array.reshape(-1), here
        )
        return tickets

    def _block(self, ahead: _Ahead) -> Block:
        count = self._count(ahead.first)
        if ahead.room is not None:
            return Block.of(ahead.first, self._rooms[ahead.room].array[:count])
        assert self.held is not None
        positions = self.held.positions(ahead.layer, ahead.first, count)
        return Block(ahead.first, self.held.rows_of(ahead.layer), positions, self._stride)
