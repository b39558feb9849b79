"""The slot pool: takes active sets, returns slots that hold their bundles.

Goals: one allocation for the life of a model; kernels compute where reads land; resident bundles
never move. Not here: which bundles are active, and what is computed from them. Threads: one caller
at a time; `cancel` of the reader may come from anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import NO_IDS, Ids
from flashllm.core.numpy_twin.slots import HERE
from flashllm.errors import Cancelled, FlashllmError
from flashllm.flash.store import Store
from flashllm.system.clock import PartClock
from flashllm.weight_cache.block_stream import Block, BlockStream
from flashllm.weight_cache.blocks import summation_ids
from flashllm.weight_cache.counters import StreamCounters
from flashllm.weight_cache.device_slots import DeviceSlots
from flashllm.weight_cache.layer_cache import Acquired, LayerCache
from flashllm.weight_cache.policies import Uses, make_policies
from flashllm.weight_cache.pool import EVERYTHING, Part, ReadCounts, Round
from flashllm.weight_cache.rounds import split_rounds

_ENOUGH_BYTES = 32 << 20
"""Of a ring, which are 64 reads: twice as many as there are in flight by default."""
_NEARLY_FULL = 8
"""At most 1/8 of the slots are free: a prompt's ring borrows up to 1/12 of them."""


@dataclass(slots=True)
class Prefetch:
    """Bundles that are being prefetched, and their slots."""

    ids: Ids
    slots: Ids
    tickets: list[int]

    def only(self, where: NDArray[np.bool_]) -> Prefetch:
        """Some of them, where each has a ticket of its own."""
        tickets = [self.tickets[number] for number in np.flatnonzero(where)]
        return Prefetch(self.ids[where], self.slots[where], tickets)


@dataclass(slots=True)
class Fetch:
    """Slots acquired for an active set, whose missing bundles are being read."""

    acquired: Acquired
    prefetched: int = 0
    prefetched_used: int = 0
    tickets: list[int] = field(default_factory=list)

    @property
    def positions(self) -> Ids:
        """Positions of `acquired.ids` in the pool, in units of the stride."""
        return self.acquired.slots


class SlotPool:
    """Slots for the bundles of all layers, with a policy for each layer."""

    def __init__(
        self,
        store: Store,
        slots_per_layer: Sequence[int],
        policy: str,
        window: int,
        stream: BlockStream,
        lent_bytes: Sequence[int] = (),
        *,
        clock: PartClock | None = None,
        early: bool = True,
        device: DeviceSlots | None = None,
        whole_blocks: bool = False,
    ) -> None:
        """`policy` is one of POLICIES; `window`, in tokens, is for the paper's policy.

        `stream` reads whole layers, into its own memory and into `lent_bytes` of each layer's
        slots. With `early`, bundles that are already in slots are yielded before the others have
        been read. Slots of the first layers may be on a `device`; there a round is yielded whole.
        `whole_blocks` is for tokens that read whole layers: of each the first blocks are held, and
        the others are read in order.
        """
        n_bundles = store.header.bundles_per_layer
        self._store = store
        self._stride = store.header.stride
        self._block_ids = summation_ids(store.spec)
        policies = make_policies(policy, len(slots_per_layer), n_bundles, window)
        n_slots = [int(slots) for slots in slots_per_layer]
        self._device = device
        self._device_layers = 0 if device is None else device.layers
        beyond = self._device_layers
        *there, _ = itertools.accumulate(n_slots[:beyond], initial=0)
        *starts, together = itertools.accumulate(n_slots[beyond:], initial=0)
        self._starts = [*starts, together]
        """First slots of the layers in DRAM, and the end of all."""
        self._layers = [
            LayerCache(n_bundles, *of_layer)
            for of_layer in zip(n_slots, policies, [*there, *starts], strict=True)
        ]
        self._buffer = core.Buffer(max(together, 1) * self._stride)
        self.rows: NDArray[np.uint8] = self._buffer.array()
        """Slots in DRAM."""
        self.counters = StreamCounters()
        self._stream = stream
        self._lent_bytes = lent_bytes
        self._whole_blocks = whole_blocks
        self._fills = policy != "window"
        self._is_lent = False
        self._spare: core.Buffer | None = None
        """The same for a prompt that leaves other memory free."""
        self._clock = clock or PartClock()
        self._early = early
        self._prefetches: dict[int, Prefetch] = {}
        self._dropped: dict[int, Prefetch] = {}
        """Prefetched bundles that turned out not to be needed, until their reads have ended."""
        self._landed: dict[int, tuple[int, int]] = {}
        """Prefetched bundles that `reserve` waited for: how many, and how many were needed."""
        self._marks = np.zeros(n_bundles, dtype=np.bool_)  # a set of ids, empty between calls
        self._last: list[tuple[int, list[Acquired]]] = [(-2, [])] * len(self._layers)
        """For each layer, the last token that acquired slots, and what it acquired."""
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

    @property
    def prefetches(self) -> bool:
        """True: slots may be filled early."""
        return True

    def rounds(self, layer: int, ids: Ids) -> Iterator[Round]:
        """The active set in rounds that fit into the layer's slots, each fetched when yielded."""
        self._clock.switch("plan")
        for piece in self._split(layer, ids):
            if self._prefetches:
                self._clock.switch("io_exposed")
                self.reserve(layer, piece)
            self._clock.switch("manage")
            fetch = self.acquire(layer, piece)
            self._clock.switch("io_exposed")
            self.begin(layer, fetch)
            reads = ReadCounts(
                fetch.acquired.n_missing + fetch.prefetched_used,
                fetch.prefetched,
                fetch.prefetched_used,
            )
            # On a device a product's last bits depend on what is multiplied together.
            early = self._early and layer >= self._device_layers
            arrivals = self.arrivals(layer, fetch, early)
            yield Round(piece, fetch.positions, self.rows_of(layer), arrivals, reads)

    def prefetch(self, layer: int, ids: Ids, is_certain: bool = False) -> None:
        """Begin to read `ids`, most likely first, as far as there are slots for them."""
        self._clock.switch("manage")
        self.plan_prefetch(layer, ids, is_certain)
        self._clock.switch("io_exposed")
        self.start_prefetch(layer, is_certain)

    def blocks(self, layer: int) -> Iterator[Block]:
        """The whole layer; bundles that are in slots are not read."""
        if not self._stream.expects(layer):
            self.expect(range(layer, len(self._layers)))
        return self._stream.blocks(layer)

    def expect(self, layers: Iterable[int], spare_bytes: int = 0) -> None:
        """Begin to read whole layers; slots planned for this are lent until `end_expecting`.

        What they hold would have to be read again: where `spare_bytes` are enough for a ring, that
        is in memory of its own.
        """
        if any(self._lent_bytes) and not self._is_lent and self._spare is None:
            block_bytes = self._stream.block_bytes
            blocks = min(sum(self._lent_bytes), spare_bytes) // block_bytes
            if blocks * block_bytes >= _ENOUGH_BYTES or spare_bytes >= sum(self._lent_bytes):
                self._spare = core.Buffer(blocks * block_bytes)
                places = range(0, blocks * block_bytes, block_bytes)
                self._stream.borrow(self._spare, places)
            else:
                self._stream.borrow(self._buffer, self.lend(self._lent_bytes, block_bytes))
                self._is_lent = True
        self._stream.expect((layer, 0) for layer in layers)

    def end_expecting(self) -> None:
        """Wait for the reads, and take back the lent slots."""
        self._stream.give_back()
        self._spare = None
        if self._is_lent:
            self.take_back()
            self._is_lent = False

    def lend(self, lent_bytes: Sequence[int], block_bytes: int) -> list[int]:
        """Lend slots of each layer as memory for whole blocks, until `take_back`.

        Returns the byte offsets of the blocks in the pool's buffer.
        """
        assert not self._prefetches, "nothing may be on its way into slots that are lent"
        places: list[int] = []
        for layer, nbytes in zip(self._layers, lent_bytes, strict=True):
            first = layer.lend(nbytes // self._stride) * self._stride
            places += range(first, first + nbytes, block_bytes)
        return places

    def take_back(self) -> None:
        """Use all slots for bundles again; those that were lent are free."""
        for layer in self._layers:
            layer.lend(0)

    def positions(self, layer: int, first: int, count: int) -> Ids:
        """Of neighbouring bundles in the pool, -1 where one is in no slot; between tokens."""
        assert not self._prefetches, "what is on its way is not there yet"
        return self._layers[layer].slots(first, count)

    def rows_of(self, layer: int) -> NDArray[np.uint8]:
        """Memory that holds the bundles of a layer."""
        if self._device is not None and layer < self._device_layers:
            return self._device.rows
        return self.rows

    def stay(self, layer: int) -> bool:
        """Whether a prompt may compute with bundles where they are.

        Nothing is evicted where the layer has a slot for each, or is read whole by every token.
        """
        return self._whole_blocks or self._layers[layer].has_room_for_all

    @property
    def buffer(self) -> core.Buffer:
        """The memory of the slots."""
        return self._buffer

    def place(self, layer: int, first: int, count: int) -> int | None:
        """The slots of a block of a layer that has room for all, if it was filled in order."""
        may_read = self._fills and layer >= self._device_layers
        slot = self._layers[layer].in_order(first, count) if may_read else None
        return None if slot is None else slot * self._stride

    def keep(self, layer: int, first: int, count: int) -> None:
        """Bundles have arrived in the slots that `place` named."""
        self._layers[layer].put_in_order(first, count)

    def fill(
        self, layer: int, ids: Ids, uses: NDArray[np.int64], most: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Free slots for `most` of `ids`, those of the most uses first; nothing is evicted.

        Of a layer that every token reads whole, for as many of the first ones as there are slots:
        what is left to read is in one piece then.
        """
        if self._whole_blocks:
            uses, most = np.zeros_like(uses), len(ids)
        kept, slots = self._layers[layer].fill(ids, uses, most)
        return kept, slots, self.rows_of(layer)

    @property
    def may_hold_more(self) -> bool:
        """Whether each bundle of the model has a slot, and some are not there yet."""
        has_room = self._fills and all(layer.has_room_for_all for layer in self._layers)
        return has_room and any(layer.free_slots for layer in self._layers)

    @property
    def is_nearly_full(self) -> bool:
        """Whether hardly a slot is free, those apart that a prompt borrowed."""
        free = sum(layer.free_slots for layer in self._layers)
        return free <= sum(layer.n_slots for layer in self._layers) // _NEARLY_FULL

    def free_slots(self, layer: int) -> int:
        """Slots of a layer that a prompt may fill; the paper's policy holds its window only."""
        return self._layers[layer].free_slots if self._fills else 0

    def valuable(self, layer: int) -> Ids:
        """Bundles in the slots of a layer, those first that its policy keeps longest."""
        return self._layers[layer].valuable(self.token)

    def resize(self, bundles_per_layer: Sequence[int]) -> None:
        """Use so many slots of each layer from now on; what was lent stays what it is, of these."""
        self.end_expecting()
        self.drain()
        in_dram = self._layers[self._device_layers :], bundles_per_layer[self._device_layers :]
        for layer, n_slots, (begin, end) in zip(
            *in_dram, itertools.pairwise(self._starts), strict=True
        ):
            layer.resize(n_slots)
            unused = end - begin - n_slots
            self._buffer.discard((end - unused) * self._stride, unused * self._stride)

    def layer(self, index: int) -> LayerCache:
        """The cache of one layer."""
        return self._layers[index]

    def clear(self) -> None:
        """Start over: nothing is resident."""
        self.drain()
        self.token = 0
        self._last = [(-2, [])] * len(self._layers)
        for layer in self._layers:
            layer.clear()

    def advance(self, tokens: int = 1) -> None:
        """`tokens` tokens have passed."""
        self.token += tokens

    def close(self) -> None:
        """Drop the memory of the slots; the store is closed."""
        del self.rows, self._buffer
        self._spare = None
        if self._device is not None:
            self._device.close()
        self._prefetches.clear()
        self._dropped.clear()
        self._stream.close()

    def _split(self, layer: int, ids: Ids) -> list[Ids]:
        """The active set, cut into rounds that fit; rounds beyond the first are counted."""
        most = self._layers[layer].n_slots
        if self._device is not None and layer < self._device_layers:
            most = min(most, self._device.round_bundles)
        pieces = split_rounds(ids, most, self._block_ids)
        self.counters.extra_rounds += len(pieces) - 1
        return pieces

    def plan_prefetch(self, layer: int, ids: Ids, is_certain: bool = False) -> None:
        """Give slots to `ids`, most likely first; `start_prefetch` must follow."""
        assert layer not in self._prefetches
        if self._store.tickets_each and not is_certain:
            ids = self._within_spare_slots(layer, ids)
        if self._device is not None and layer < self._device_layers:
            ids = ids[: self._device.prefetch_room]
        found, slots = self._layers[layer].prefetch(ids, self.token)
        if len(found):
            self._prefetches[layer] = Prefetch(found, slots, [])
            self.counters.prefetched += len(found)

    def start_prefetch(self, layer: int, is_certain: bool = False) -> None:
        """Begin to read the bundles that `plan_prefetch` gave slots."""
        prefetch = self._prefetches.get(layer)
        if prefetch is None:
            return
        try:
            ahead = self._store.tickets_each and not is_certain
            prefetch.tickets = self._begin(
                layer, prefetch.ids, prefetch.slots, ahead, prefetched=True
            )
        except BaseException:
            del self._prefetches[layer]
            raise

    def reserve(self, layer: int, ids: Ids) -> None:
        """Where slots are short and prefetched ones are needed, wait for their reads.

        `acquire` must follow; the two are separate so that waiting and deciding can be timed apart.
        """
        if self._store.tickets_each:
            self._drop(layer, ids)
            return
        prefetch, n_slots = self._prefetches.get(layer), self._layers[layer].n_slots
        made = 0 if prefetch is None else len(prefetch.ids)
        if prefetch is None or len(ids) + made <= n_slots:
            return
        used = self._count_among(prefetch.ids, ids)
        if len(ids) + made - used > n_slots:
            self._landed[layer] = (made, used if self._complete(layer) else 0)

    def acquire(self, layer: int, ids: Ids) -> Fetch:
        """Decide which slots the bundles get, between `reserve` and `begin`."""
        prefetch = self._prefetches.get(layer)
        in_flight = NO_IDS if prefetch is None else prefetch.ids
        made, settled = self._landed.pop(layer, (len(in_flight), 0))
        if layer in self._dropped:
            in_flight = np.concatenate([in_flight, self._dropped[layer].ids])
        acquired = self._layers[layer].acquire(ids, self.token, in_flight)
        missing, used = acquired.n_missing, settled + acquired.n_in_flight
        token, acquisitions = self._last[layer]
        self._last[layer] = (
            self.token,
            [*acquisitions, acquired] if token == self.token else [acquired],
        )
        counters = self.counters
        counters.misses += missing + used
        counters.prefetched_used += used
        if not self._store.tickets_each:
            counters.prefetched_bytes_wasted += (made - used) * self._stride
        counters.hits += len(ids) - missing - used
        counters.evicted_early += acquired.evicted_early
        return Fetch(acquired, made, used)

    def begin(self, layer: int, fetch: Fetch) -> None:
        """Begin to read the missing bundles."""
        acquired = fetch.acquired
        if acquired.n_missing:
            where = acquired.missing
            fetch.tickets = self._begin(layer, acquired.ids[where], acquired.slots[where])

    def arrivals(self, layer: int, fetch: Fetch, early: bool = True) -> Iterator[Part]:
        """Yields masks [n] of the acquired bundles that have arrived; each bundle is in one mask.

        `EVERYTHING` is that of all; without `early` there is no other, once all have arrived.
        """
        acquired, waits = fetch.acquired, self._clock.switch
        ahead, late = acquired.n_in_flight > 0, acquired.n_missing > 0
        try:
            if early and not ahead and not late:
                if len(acquired.ids):
                    yield EVERYTHING
            elif early and acquired.n_missing + acquired.n_in_flight < len(acquired.ids):
                yield acquired.states == HERE
            waits("io_exposed")
            if layer in self._prefetches and not self._complete(layer):
                self._fetch_again(layer, fetch)
            if early and ahead:
                yield acquired.in_flight
                waits("io_exposed")
            if early and len(fetch.tickets) == acquired.n_missing > 1:
                yield from self._one_by_one(layer, fetch)
                return
        finally:
            # Also if nobody wants the rest: no read may land in a slot that is evicted.
            self._wait(layer, fetch)
            self._settle_dropped(layer)
        if early and late:
            yield acquired.missing
        elif not early and len(acquired.ids):
            yield EVERYTHING

    def _one_by_one(self, layer: int, fetch: Fetch) -> Iterator[NDArray[np.bool_]]:
        """Masks of the missing bundles, each of which has a ticket, as they arrive."""
        acquired = fetch.acquired
        for number in np.flatnonzero(acquired.missing):
            self._clock.switch("io_exposed")
            try:
                self._store.wait_bundles(layer, fetch.tickets[:1])
            except BaseException:
                # Of the rest too: who gets an error computes with none of them.
                self._layers[layer].release(acquired.slots[acquired.missing])
                raise
            finally:
                del fetch.tickets[0]
            arrived = np.zeros(len(acquired.ids), dtype=np.bool_)
            arrived[number] = True
            yield arrived

    def marks(self, layer: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Which bundles [n] are in slots, which the last token found there, and which it read.

        From any thread: while a token is decoded, what it has acquired so far counts. Wasted
        prefetches count as being in slots only.
        """
        resident = self._layers[layer].held()
        hit, loaded = np.zeros_like(resident), np.zeros_like(resident)
        token, acquisitions = self._last[layer]
        for acquired in acquisitions if token >= self.token - 1 else ():
            here = acquired.states == HERE
            loaded[acquired.ids[~here]] = True
            hit[acquired.ids[here]] = True
        return resident, hit, loaded

    def drain(self) -> None:
        """Wait for reads that nobody else will wait for."""
        for layer in list(self._prefetches) if self._store.tickets_each else ():
            self._drop(layer, NO_IDS)
        self._landed.clear()
        for layer in list(self._prefetches):
            with contextlib.suppress(Cancelled):
                self._complete(layer)
        for layer in list(self._dropped):
            self._settle_dropped(layer)

    def _count_among(self, some: Ids, ids: Ids) -> int:
        """How many of `ids` are among `some`."""
        self._marks[some] = True
        found = int(np.count_nonzero(self._marks[ids]))
        self._marks[some] = False
        return found

    def _within_spare_slots(self, layer: int, ids: Ids) -> Ids:
        """Of likely ids those in slots, and as many others as there are slots beyond a token's.

        Others would take slots from bundles that the token needs if they were guessed wrong.
        """
        here = self._layers[layer].held()[ids]
        spare = max(self._layers[layer].n_slots - len(ids), 0)
        return np.concatenate([ids[here], ids[~here][:spare]])

    def _drop(self, layer: int, ids: Ids) -> None:
        """Stop to read those prefetched bundles that are not among `ids`, the needed ones."""
        prefetch = self._prefetches.pop(layer, None)
        if prefetch is None:
            return
        self._marks[ids] = True
        is_needed = self._marks[prefetch.ids]
        self._marks[ids] = False
        needed, dropped = prefetch.only(is_needed), prefetch.only(~is_needed)
        self._landed[layer] = (len(prefetch.ids), 0)
        if needed.tickets:
            self._prefetches[layer] = needed
        if dropped.tickets:
            self._dropped[layer] = dropped
        for ticket in needed.tickets:
            self._store.hasten(ticket)
        for ticket in dropped.tickets:
            self.counters.prefetched_bytes_wasted += self._store.drop(ticket)
        if len(ids) + len(dropped.ids) > self._layers[layer].n_slots:
            self._settle_dropped(layer)

    def _settle_dropped(self, layer: int) -> None:
        """Wait for the reads of dropped bundles that had begun; a bundle that is whole stays."""
        dropped = self._dropped.pop(layer, None)
        if dropped is None:
            return
        for number, ticket in enumerate(dropped.tickets):
            try:
                self._arrive(layer, [ticket])
            except FlashllmError:  # most often since it was dropped; nobody needs it
                self._layers[layer].release(dropped.slots[number : number + 1])

    def _begin(
        self, layer: int, ids: Ids, slots: Ids, ahead: bool = False, *, prefetched: bool = False
    ) -> list[int]:
        """Begin to read bundles into their slots; tickets for them."""
        destinations = slots.astype(np.int64) * self._stride
        try:
            if self._device is not None and layer < self._device_layers:
                return self._device.begin(layer, ids, slots, ahead, prefetched=prefetched)
            return self._store.submit_bundles(layer, ids, self._buffer, destinations, ahead)
        except BaseException:
            self._layers[layer].release(slots)
            raise

    def _wait(self, layer: int, fetch: Fetch) -> None:
        if not fetch.tickets:
            return
        tickets, fetch.tickets = fetch.tickets, []
        try:
            self._arrive(layer, tickets)
        except BaseException:
            self._layers[layer].release(fetch.acquired.slots[fetch.acquired.missing])
            raise

    def _arrive(self, layer: int, tickets: list[int]) -> None:
        """Wait for reads, after which the bundles are in their slots."""
        try:
            self._store.wait_bundles(layer, tickets)
        except BaseException:
            if self._device is not None:
                self._device.abandon(tickets)
            raise
        if self._device is not None:
            self._device.end(tickets)

    def _complete(self, layer: int) -> bool:
        """Wait for a layer's prefetched bundles; False if one could not be read."""
        prefetch = self._prefetches.pop(layer)
        try:
            self._arrive(layer, prefetch.tickets)
        except BaseException as error:
            self._layers[layer].release(prefetch.slots)
            if isinstance(error, FlashllmError) and not isinstance(error, Cancelled):
                return False
            raise
        return True

    def _fetch_again(self, layer: int, fetch: Fetch) -> None:
        """Read again the needed bundles whose prefetch failed.

        A failed prefetch of a bundle that is not needed is no error.
        """
        acquired = fetch.acquired
        where = np.flatnonzero(acquired.in_flight)
        again = self._layers[layer].acquire(
            acquired.ids[where], self.token, acquired.ids[acquired.missing]
        )
        acquired.slots[where] = again.slots
        self._wait(layer, Fetch(again, tickets=self._begin(layer, again.ids, again.slots)))

    def seed(
        self, layer: int, ids: Ids, used: Uses, last_token: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Slots for bundles that a prompt used, while the layer's blocks are computed.

        Bundles that a later block needs stay where they are: they would be read again.
        """
        until = self._stream.begun(layer)
        kept, slots = self._layers[layer].place(ids, used, last_token, until)
        return kept.astype(np.int32), slots, self.rows_of(layer)
