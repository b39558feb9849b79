"""Slots on a device, for the first layers of a model: reads land in DRAM and are copied from there.

The reader is that of all bundles. Each read goes to staging, memory in DRAM that is locked there
where the system allows, and what arrived is copied to its slots on the device in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.core.device_memory import DeviceMemory
from flashllm.flash.store import Store
from flashllm.weight_cache.block_stream import Block


@dataclass(frozen=True, slots=True)
class _Staged:
    """Bundles that are being read to cells of the staging, and their slots."""

    cells: Ids
    slots: Ids
    prefetched: bool


class DeviceSlots:
    """Slots of the first layers, and the staging through which they are filled.

    One caller at a time, who has at most `round_bundles` reads under way that are no prefetches.
    """

    def __init__(
        self,
        store: Store,
        memory: DeviceMemory,
        kernels: core.Kernels,
        slots_per_layer: Sequence[int],
        round_bundles: int,
    ) -> None:
        """`slots_per_layer` are those of the layers on the device; `kernels` copy between both.

        Errors: `OutOfMemory`.
        """
        self._store, self._memory, self._kernels = store, memory, kernels
        self._stride = store.header.stride
        self.layers = len(slots_per_layer)
        """The first layers, whose slots are on the device."""
        self.rows: NDArray[np.uint8] = memory.allocate(sum(slots_per_layer) * self._stride)
        """The slots, of all of these layers."""
        self.round_bundles = round_bundles
        """Bundles that may be read together."""
        self._buffer = core.Buffer(2 * round_bundles * self._stride)
        self._array = self._buffer.array()
        memory.pin(self._buffer)
        self._is_free = np.ones(2 * round_bundles, dtype=np.bool_)
        self._copied: list[Ids] = []
        """Cells whose copies may not have ended yet."""
        self._under_way: dict[int, _Staged] = {}
        self._prefetched = 0
        self.bundles_copied = 0
        """Bundles that were copied to slots."""

    @property
    def prefetch_room(self) -> int:
        """Bundles that may be prefetched now."""
        return self.round_bundles - self._prefetched

    def begin(
        self, layer: int, ids: Ids, slots: Ids, ahead: bool = False, *, prefetched: bool = False
    ) -> list[int]:
        """Begin to read bundles on their way to slots; tickets for `end`, or `abandon`.

        `ahead` is that of `Store.submit_bundles`.
        """
        if self._copied:
            self._memory.synchronize()
            for copied in self._copied:
                self._is_free[copied] = True
            self._copied.clear()
        cells = np.flatnonzero(self._is_free)[: len(ids)].astype(np.int32)
        assert len(cells) == len(ids), "more is read together than the staging was made for"
        destinations = cells.astype(np.int64) * self._stride
        tickets = self._store.submit_bundles(layer, ids, self._buffer, destinations, ahead)
        self._is_free[cells] = False
        # A bundle with a ticket of its own may end, or be dropped, alone.
        each = 1 if self._store.tickets_each else len(ids)
        for first, ticket in zip(range(0, len(ids), each), tickets, strict=False):
            own = slice(first, first + each)
            self._under_way[ticket] = _Staged(cells[own], slots[own].copy(), prefetched)
        self._prefetched += len(ids) if prefetched else 0
        return tickets

    def end(self, tickets: Sequence[int]) -> None:
        """The reads of these tickets have ended: copies the bundles to their slots."""
        staged = self._taken(tickets)
        if staged:
            cells = np.concatenate([one.cells for one in staged])
            slots = np.concatenate([one.slots for one in staged])
            self._copied.append(cells)
            self._kernels.copy_rows(self._array, cells, self._stride, self.rows, slots)
            self.bundles_copied += len(cells)

    def abandon(self, tickets: Sequence[int]) -> None:
        """The reads of these tickets have ended, and what they brought is of no use."""
        for staged in self._taken(tickets):
            self._is_free[staged.cells] = True

    def _taken(self, tickets: Sequence[int]) -> list[_Staged]:
        found = [self._under_way.pop(ticket) for ticket in tickets if ticket in self._under_way]
        self._prefetched -= sum(len(one.cells) for one in found if one.prefetched)
        return found

    def close(self) -> None:
        """Drop the memory, into which nothing is read any longer."""
        self._memory.synchronize()
        self._memory.unpin(self._buffer)
        del self.rows, self._array, self._buffer


class DeviceBlock:
    """Memory on a device for one block of a layer that is read whole."""

    def __init__(
        self, memory: DeviceMemory, kernels: core.Kernels, layers: int, bundles: int, stride: int
    ) -> None:
        """Blocks of the first `layers` layers are computed there; each has up to `bundles`."""
        self.layers = layers
        self._kernels, self._stride = kernels, stride
        self._rows = memory.allocate(bundles * stride)
        self._positions = np.arange(bundles, dtype=np.int32)

    def take(self, block: Block) -> Block:
        """A copy of a block there, until the next one is taken."""
        places = self._positions[: len(block)]
        self._kernels.copy_rows(block.rows, block.positions, self._stride, self._rows, places)
        return Block(block.first, self._rows, places, self._stride)
