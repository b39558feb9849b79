"""The slot pool: active sets in, slots that hold their bundles out.

Goals: one allocation for the life of a model; reads land where they are computed from; nothing
resident is moved. Not here: which bundles are active, and what is computed from them.
Threads: one caller at a time; `cancel` of the reader may come from anywhere.
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
from flashllm.weight_cache.blocks import passes
from flashllm.weight_cache.counters import StreamCounters
from flashllm.weight_cache.layer_cache import Claim, LayerWindow
from flashllm.weight_cache.policies import Uses, make_policies
from flashllm.weight_cache.pool import ReadCounts, Round


@dataclass(slots=True)
class Guess:
    """Bundles that are being read before it is known that they are needed, and into which slots."""

    ids: Ids
    slots: Ids
    tickets: list[int]


@dataclass(slots=True)
class Fetch:
    """A claim whose missing bundles are being read."""

    claim: Claim
    guesses_made: int = 0
    guesses_used: int = 0
    tickets: list[int] = field(default_factory=list)

    @property
    def positions(self) -> Ids:
        """In the pool, in units of the stride, of `claim.ids`."""
        return self.claim.slots


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
    ) -> None:
        """`policy` is one of POLICIES; `window` in tokens is for the paper's.

        `stream` reads layers whole, into rooms of its own and into `lent_bytes` of each layer's
        slots. With `early`, what is in slots already is given before the rest has been read.
        """
        n_bundles = store.header.bundles_per_layer
        self._store = store
        self._stride = store.header.stride
        policies = make_policies(policy, len(slots_per_layer), n_bundles, window)
        n_slots = [int(slots) for slots in slots_per_layer]
        *starts, together = itertools.accumulate(n_slots, initial=0)
        self._layers = [
            LayerWindow(n_bundles, *of_layer)
            for of_layer in zip(n_slots, policies, starts, strict=True)
        ]
        self._buffer = core.Buffer(together * self._stride)
        self.rows: NDArray[np.uint8] = self._buffer.array()
        self.counters = StreamCounters()
        self._stream = stream
        self._lent_bytes = lent_bytes
        self._is_lent = False
        self._clock = clock or PartClock()
        self._early = early
        self._guesses: dict[int, Guess] = {}
        self._landed: dict[int, tuple[int, int]] = {}
        """Guesses that were waited for before their layer's claim: how many, how many right."""
        self._marks = np.zeros(n_bundles, dtype=np.bool_)  # a set of ids, empty between calls
        self._last: list[tuple[int, list[Claim]]] = [(-2, [])] * len(self._layers)
        """Of each layer the token that claimed last, and its claims."""
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
        """Slots may be filled ahead."""
        return True

    def rounds(self, layer: int, ids: Ids) -> Iterator[Round]:
        """The active set in pieces that fit into the layer's slots, each as it is fetched."""
        self._clock.switch("plan")
        for piece in self.passes(layer, ids):
            self._clock.switch("io_exposed")
            self.make_room(layer, piece)
            self._clock.switch("manage")
            fetch = self.claim(layer, piece)
            self._clock.switch("io_exposed")
            self.begin(layer, fetch)
            reads = ReadCounts(
                fetch.claim.n_missing + fetch.guesses_used, fetch.guesses_made, fetch.guesses_used
            )
            arrivals = self.arrivals(layer, fetch, self._early)
            yield Round(piece, fetch.positions, self.rows, arrivals, reads)

    def prefetch(self, layer: int, ids: Ids) -> None:
        """Begin to read `ids`, the likeliest first, as far as there are slots for them."""
        self._clock.switch("manage")
        self.guess(layer, ids)
        self._clock.switch("io_exposed")
        self.begin_guess(layer)

    def blocks(self, layer: int) -> Iterator[Block]:
        """The layer whole, past the slots: what is in these is read again."""
        if not self._stream.expects(layer):
            self.expect(range(layer, len(self._layers)))
        return self._stream.blocks(layer)

    def expect(self, layers: Iterable[int]) -> None:
        """Begin to read layers whole; slots that are planned for it are lent until the end."""
        if any(self._lent_bytes) and not self._is_lent:
            self._stream.borrow(self._buffer, self.lend(self._lent_bytes, self._stream.block_bytes))
            self._is_lent = True
        self._stream.expect((layer, 0) for layer in layers)

    def end_expecting(self) -> None:
        """Let the reads end, and take back what was lent."""
        self._stream.give_back()
        if self._is_lent:
            self.take_back()
            self._is_lent = False

    def lend(self, lent_bytes: Sequence[int], block_bytes: int) -> list[int]:
        """Give up slots for so many bytes of each layer, whole blocks, until `take_back`.

        Returns the places of the blocks in the pool's buffer, in bytes.
        """
        assert not self._guesses, "nothing may be on its way into slots that are lent"
        places: list[int] = []
        for layer, nbytes in zip(self._layers, lent_bytes, strict=True):
            first = layer.lend(nbytes // self._stride) * self._stride
            places += range(first, first + nbytes, block_bytes)
        return places

    def take_back(self) -> None:
        """All slots are for bundles again; those that were lent are free."""
        for layer in self._layers:
            layer.lend(0)

    def layer(self, index: int) -> LayerWindow:
        """The window of one layer."""
        return self._layers[index]

    def clear(self) -> None:
        """Start over: nothing is resident."""
        self.drain()
        self.token = 0
        self._last = [(-2, [])] * len(self._layers)
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

    def guess(self, layer: int, ids: Ids) -> None:
        """Decide which slots the guessed `ids`, the likeliest first, get; `begin_guess` follows."""
        assert layer not in self._guesses
        found, slots = self._layers[layer].prefetch(ids, self.token)
        if len(found):
            self._guesses[layer] = Guess(found, slots, [])
            self.counters.guessed += len(found)

    def begin_guess(self, layer: int) -> None:
        """Begin to read what a guess has slots for."""
        guess = self._guesses.get(layer)
        if guess is None:
            return
        try:
            guess.tickets = self._begin(layer, guess.ids, guess.slots)
        except BaseException:
            del self._guesses[layer]
            raise

    def make_room(self, layer: int, ids: Ids) -> None:
        """Where slots are short and those of wrong guesses needed, wait until nothing lands there.

        `claim` has to follow: so the wait can be told from the decision.
        """
        guess, n_slots = self._guesses.get(layer), self._layers[layer].n_slots
        made = 0 if guess is None else len(guess.ids)
        if guess is None or len(ids) + made <= n_slots:
            return
        used = self._count_among(guess.ids, ids)
        if len(ids) + made - used > n_slots:
            self._landed[layer] = (made, used if self._settle(layer) else 0)

    def claim(self, layer: int, ids: Ids) -> Fetch:
        """Decide which slots the bundles get, between `make_room` and `begin`."""
        guess = self._guesses.get(layer)
        in_flight = NO_IDS if guess is None else guess.ids
        made, settled = self._landed.pop(layer, (len(in_flight), 0))
        claim = self._layers[layer].claim(ids, self.token, in_flight)
        missing, used = claim.n_missing, settled + claim.n_in_flight
        token, claims = self._last[layer]
        self._last[layer] = (self.token, [*claims, claim] if token == self.token else [claim])
        counters = self.counters
        counters.misses += missing + used
        counters.guesses_used += used
        counters.hits += len(ids) - missing - used
        counters.spilled += claim.spilled
        return Fetch(claim, made, used)

    def begin(self, layer: int, fetch: Fetch) -> None:
        """Begin to read what of a claim is missing."""
        claim = fetch.claim
        if claim.n_missing:
            where = claim.missing
            fetch.tickets = self._begin(layer, claim.ids[where], claim.slots[where])

    def arrivals(self, layer: int, fetch: Fetch, early: bool = True) -> Iterator[NDArray[np.bool_]]:
        """Which bundles of a claim are there now: masks [n], each bundle in one of them.

        Without `early` all of them in one, once all are there.
        """
        claim, waits = fetch.claim, self._clock.switch
        guessed, late = claim.n_in_flight > 0, claim.n_missing > 0
        try:
            if early and claim.n_missing + claim.n_in_flight < len(claim.ids):
                yield claim.states == HERE
            waits("io_exposed")
            if layer in self._guesses and not self._settle(layer):
                self._fetch_again(layer, fetch)
            if early and guessed:
                yield claim.in_flight
                waits("io_exposed")
        finally:
            # Also where nobody wants the rest: nothing may land in a slot that is given up.
            self._wait(layer, fetch)
        if early and late:
            yield claim.missing
        elif not early and len(claim.ids):
            yield np.ones(len(claim.ids), dtype=np.bool_)

    def marks(self, layer: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Which bundles [n] are in slots, and which the last token found there, and had read.

        From any thread: while a token is decoded, what it has claimed so far counts. What it read
        in vain is in a slot, and no more.
        """
        resident = self._layers[layer].held()
        hit, loaded = np.zeros_like(resident), np.zeros_like(resident)
        token, claims = self._last[layer]
        for claim in claims if token >= self.token - 1 else ():
            here = claim.states == HERE
            loaded[claim.ids[~here]] = True
            hit[claim.ids[here]] = True
        return resident, hit, loaded

    def drain(self) -> None:
        """Let reads that nobody will wait for end."""
        self._landed.clear()
        for layer in list(self._guesses):
            with contextlib.suppress(Cancelled):
                self._settle(layer)

    def _count_among(self, some: Ids, ids: Ids) -> int:
        """How many of `ids` are among `some`."""
        self._marks[some] = True
        found = int(np.count_nonzero(self._marks[ids]))
        self._marks[some] = False
        return found

    def _begin(self, layer: int, ids: Ids, slots: Ids) -> list[int]:
        """Begin to read bundles into their slots; tickets for them."""
        destinations = slots.astype(np.int64) * self._stride
        try:
            return self._store.submit_bundles(layer, ids, self._buffer, destinations)
        except BaseException:
            self._layers[layer].disown(slots)
            raise

    def _wait(self, layer: int, fetch: Fetch) -> None:
        tickets, fetch.tickets = fetch.tickets, []
        try:
            self._store.wait_bundles(layer, tickets)
        except BaseException:
            self._layers[layer].disown(fetch.claim.slots[fetch.claim.missing])
            raise

    def _settle(self, layer: int) -> bool:
        """Wait for the guesses of a layer; False where they could not be read."""
        guess = self._guesses.pop(layer)
        try:
            self._store.wait_bundles(layer, guess.tickets)
        except BaseException as error:
            self._layers[layer].disown(guess.slots)
            if isinstance(error, FlashllmError) and not isinstance(error, Cancelled):
                return False
            raise
        return True

    def _fetch_again(self, layer: int, fetch: Fetch) -> None:
        """Read right guesses that could not be read: what was not needed need not be readable."""
        claim = fetch.claim
        where = np.flatnonzero(claim.in_flight)
        again = self._layers[layer].claim(claim.ids[where], self.token, claim.ids[claim.missing])
        claim.slots[where] = again.slots
        self._wait(layer, Fetch(again, tickets=self._begin(layer, again.ids, again.slots)))

    def seed(
        self, layer: int, ids: Ids, used: Uses, last_token: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
        """Slots for bundles that a prompt used."""
        kept, slots = self._layers[layer].place(ids, used, last_token)
        return kept.astype(np.int32), slots, self.rows
