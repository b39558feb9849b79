"""Bundles that stay in DRAM where every token needs every neuron, so that no window helps.

The first bundles of each layer are pinned, as many as the ceiling allows; the rest is streamed. A
cache that replaces bundles would evict each one just before it is needed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import NO_IDS, Ids
from flashllm.errors import FlashllmError
from flashllm.flash.store import Store
from flashllm.weight_cache.block_stream import Block, BlockStream
from flashllm.weight_cache.counters import StreamCounters
from flashllm.weight_cache.device_slots import DeviceSlots
from flashllm.weight_cache.policies import Uses
from flashllm.weight_cache.pool import Round

_READ_BUNDLES_BYTES = 64 << 20


class PinnedBundles:
    """The first `pinned_per_layer[i]` bundles of each layer, read once."""

    def __init__(
        self,
        store: Store,
        pinned_per_layer: Sequence[int],
        stream: BlockStream,
        device: DeviceSlots | None = None,
    ) -> None:
        """`stream` reads the bundles that are not pinned.

        Those of the first layers may be pinned on a `device`, all bundles of each.
        """
        self._store = store
        self._stream = stream
        self._device = device
        self._device_layers = 0 if device is None else device.layers
        self._stride = store.header.stride
        self._counts = [0] * len(pinned_per_layer)
        """Bundles of each layer that are pinned now."""
        in_dram = [0] * self._device_layers + list(pinned_per_layer[self._device_layers :])
        starts = np.concatenate([[0], np.cumsum(in_dram)])
        self._starts: list[int] = [int(start) for start in starts]
        self._buffer = core.Buffer(max(self._starts[-1] * self._stride, 1))
        self.counters = StreamCounters()
        self.token = 0
        """Number of the next token."""
        for layer, count in enumerate(pinned_per_layer):
            self._pin(layer, count)

    @property
    def address(self) -> int:
        """Where the bundles lie in memory; it never changes."""
        return int(self._buffer.address)

    @property
    def prefetches(self) -> bool:
        """False: all bundles are needed and expected anyway."""
        return False

    def rounds(self, layer: int, ids: Ids) -> Iterator[Round]:
        """All bundles of the layer, one block per round; `ids` are all of them."""
        n_bundles, pinned = self._store.header.bundles_per_layer, self._counts[layer]
        assert len(ids) == n_bundles
        for block in self.blocks(layer):
            own, positions, rows = block.parts()
            yield Round(own, positions, rows, iter((slice(None),)))
        self.counters.hits += pinned
        self.counters.misses += n_bundles - pinned

    def prefetch(self, layer: int, ids: Ids, is_certain: bool = False) -> None:
        """Does nothing: see `prefetches`."""

    def blocks(self, layer: int) -> Iterator[Block]:
        """First the pinned blocks, then the others as they are read."""
        stream, pinned = self._stream, self._counts[layer]
        if pinned < self._store.header.bundles_per_layer and not stream.expects(layer, pinned):
            self.expect(range(layer, len(self._counts)))
        if self._device is not None and layer < self._device_layers:
            yield from stream.blocks_in(self._device.rows, layer * pinned, pinned)
            return
        yield from stream.pinned_blocks(self.rows(layer))
        yield from stream.blocks(layer, pinned)

    def expect(self, layers: Iterable[int], spare_bytes: int = 0) -> None:  # noqa: ARG002
        """Begin to read the bundles of these layers that are not pinned."""
        self._stream.expect((layer, self._counts[layer]) for layer in layers)

    def end_expecting(self) -> None:
        """Wait for the reads."""
        self._stream.give_back()

    def seed(
        self,
        layer: int,  # noqa: ARG002
        ids: Ids,  # noqa: ARG002
        used: Uses,  # noqa: ARG002
        last_token: int,  # noqa: ARG002
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Gives no bundle a slot: pinned bundles stay, whatever a prompt used."""
        return NO_IDS, NO_IDS, self._buffer.array()

    @property
    def may_hold_more(self) -> bool:
        """False: what is pinned was read when the model was opened."""
        return False

    @property
    def is_nearly_full(self) -> bool:
        """True: what is pinned was read when the model was opened."""
        return True

    def valuable(self, layer: int) -> Ids:  # noqa: ARG002
        """None: what is pinned is read when the model opens."""
        return NO_IDS

    def free_slots(self, layer: int) -> int:  # noqa: ARG002
        """None: what is pinned was read when the model was opened."""
        return 0

    def fill(
        self,
        layer: int,  # noqa: ARG002
        ids: Ids,  # noqa: ARG002
        uses: NDArray[np.int64],  # noqa: ARG002
        most: int,  # noqa: ARG002
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Gives no bundle a slot, as `seed`."""
        return NO_IDS, NO_IDS, self._buffer.array()

    def rows(self, layer: int) -> NDArray[np.uint8]:
        """The pinned bundles of a layer, [count, stride]."""
        pool = self._buffer.array()[: self._starts[-1] * self._stride].reshape(-1, self._stride)
        first = self._starts[layer]
        return pool[first : first + self._counts[layer]]

    def marks(self, layer: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Which bundles [n] are pinned, which of them the last token used, and which it read.

        Each token needs all bundles, so it read those that are not pinned.
        """
        resident = np.arange(self._store.header.bundles_per_layer) < self._counts[layer]
        used = np.full_like(resident, self.token > 0)
        return resident, resident & used, ~resident & used

    def close(self) -> None:
        """Drop the memory of the bundles; the store is closed."""
        del self._buffer
        if self._device is not None:
            self._device.close()
        self._stream.close()

    def clear(self) -> None:
        """Start over; pinned bundles stay."""
        self.token = 0

    def drain(self) -> None:
        """Does nothing: no read is under way between calls."""

    def advance(self, tokens: int = 1) -> None:
        """`tokens` tokens have passed."""
        self.token += tokens

    def resize(self, bundles_per_layer: Sequence[int]) -> None:
        """Pin so many bundles of each layer, whole blocks of them; more are read now."""
        self._stream.drain()
        for layer, count in enumerate(bundles_per_layer):
            with contextlib.suppress(FlashllmError):  # met again where the layer is streamed
                self._pin(layer, count)

    def _pin(self, layer: int, count: int) -> None:
        """Pins the first `count` bundles of a layer: reads what is missing, or drops the rest."""
        if self._device is not None and layer < self._device_layers:
            self._pin_on(self._device, layer, count)
            return
        step = max(_READ_BUNDLES_BYTES // self._stride, 1)
        start, end = self._starts[layer], self._starts[layer + 1]
        for first in range(self._counts[layer], count, step):
            bundles = min(step, count - first)
            place = (start + first) * self._stride
            ticket = self._store.submit_span(layer, first, bundles, self._buffer, place)
            self._store.wait(ticket, layer)
        self._counts[layer] = count
        unused = end - start - count
        self._buffer.discard((end - unused) * self._stride, unused * self._stride)

    def _pin_on(self, device: DeviceSlots, layer: int, count: int) -> None:
        """Pins all bundles of a layer on the device, where they stay."""
        for first in range(self._counts[layer], count, device.round_bundles):
            ids = np.arange(first, min(first + device.round_bundles, count), dtype=np.int32)
            tickets = device.begin(layer, ids, ids + np.int32(layer * count))
            try:
                self._store.wait_bundles(layer, tickets)
            except BaseException:
                device.abandon(tickets)
                raise
            device.end(tickets)
        self._counts[layer] = max(count, self._counts[layer])
