"""The slot pool over a store in memory: what is computed from is what was asked for, always."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flashllm.arrays import Ids
from flashllm.errors import Cancelled, ReadFailed
from flashllm.flash.store import Store
from flashllm.options import DEFAULT_POLICY, POLICIES
from flashllm.weight_cache.pool import EVERYTHING
from flashllm.weight_cache.rounds import split_rounds
from flashllm.weight_cache.slot_pool import Fetch, SlotPool

N_BUNDLES = 200
STRIDE = 8
id_sets = st.sets(st.integers(0, N_BUNDLES - 1), max_size=70)


class FakeHeader:
    bundles_per_layer = N_BUNDLES
    stride = STRIDE


class FakeStore:
    """Bundle `i` of layer `l` is eight bytes of i, then l; they land when they are waited for."""

    header = FakeHeader()
    spec = SimpleNamespace(neurons_per_bundle=1)
    tickets_each = False

    def __init__(self) -> None:
        self.ahead: set[int] = set()
        self.dropped: set[int] = set()
        self.whole_when_dropped = False
        self.under_way: dict[int, tuple[int, Ids, NDArray[np.uint8], NDArray[np.int64]]] = {}
        self.broken: set[int] = set()
        self.cancelled = False
        self._tickets = 0

    def submit_bundles(
        self,
        layer: int,
        ids: Ids,
        buffer: Any,
        destinations: NDArray[np.int64],
        ahead: bool = False,
    ) -> list[int]:
        memory = buffer.array()
        for place in destinations:
            memory[place : place + STRIDE] = 255  # as if half a read were there
        for _, _, _, others in self.under_way.values():
            assert not set(others.tolist()) & set(destinations.tolist()), "two reads into a slot"
        self._tickets += 1
        self.under_way[self._tickets] = (layer, ids.copy(), memory, destinations.copy())
        self.ahead |= {self._tickets} if ahead else set()
        return [self._tickets]

    def hasten(self, ticket: int) -> None:
        assert ticket in self.under_way
        self.ahead.discard(ticket)

    def drop(self, ticket: int) -> int:
        assert ticket in self.ahead
        self.dropped |= set() if self.whole_when_dropped else {ticket}
        return 3

    def wait_bundles(self, layer: int, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            of, ids, memory, destinations = self.under_way.pop(ticket)
            assert of == layer
            if self.cancelled or ticket in self.dropped:
                raise Cancelled("stopped")
            if self.broken & set(ids.tolist()):
                raise ReadFailed("a broken sector")
            for bundle, place in zip(ids, destinations, strict=True):
                memory[place : place + STRIDE] = [bundle] * (STRIDE - 1) + [layer]


class ExpertStore(FakeStore):
    """Each bundle has a ticket of its own."""

    spec = SimpleNamespace(neurons_per_bundle=8)
    tickets_each = True

    def submit_bundles(
        self,
        layer: int,
        ids: Ids,
        buffer: Any,
        destinations: NDArray[np.int64],
        ahead: bool = False,
    ) -> list[int]:
        each = [(ids[i : i + 1], destinations[i : i + 1]) for i in range(len(ids))]
        submit = super().submit_bundles
        return [ticket for one, to in each for ticket in submit(layer, one, buffer, to, ahead)]


def sorted_ids(values: set[int]) -> Ids:
    return np.array(sorted(values), dtype=np.int32)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def pool_of(
    store: FakeStore, slots: int = 80, policy: str = DEFAULT_POLICY, window: int = 2
) -> SlotPool:
    return SlotPool(cast("Store", store), (slots, slots), policy, window, cast("Any", None))


def acquire(pool: SlotPool, layer: int, ids: np.ndarray) -> Fetch:
    pool.reserve(layer, ids)
    return pool.acquire(layer, ids)


def use(pool: SlotPool, layer: int, ids: Ids, early: bool = True) -> None:
    """Fetches ids and checks each bundle's bytes at the time when it is said to be there."""
    rows = pool.rows.reshape(-1, STRIDE)
    for piece in split_rounds(ids, pool.layer(layer).n_slots):
        fetch = acquire(pool, layer, piece)
        pool.begin(layer, fetch)
        seen = np.zeros(len(piece), dtype=np.int64)
        for part in pool.arrivals(layer, fetch, early):
            seen[part] += 1
            found = rows[fetch.positions[part]]
            assert (found[:, 0] == piece[part]).all()
            assert (found[:, -1] == layer).all()
        assert (seen == 1).all()
        # They are all still there when the rows are added up.
        assert (rows[fetch.positions][:, 0] == piece).all()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(id_sets, id_sets, st.booleans()), min_size=1, max_size=8),
    st.integers(64, 100),
    st.sampled_from(POLICIES),
    st.integers(1, 4),
    st.sampled_from([FakeStore, ExpertStore]),
    st.booleans(),
)
def test_every_bundle_is_right_whatever_was_guessed(
    tokens: list[tuple[set[int], set[int], bool]],
    slots: int,
    policy: str,
    window: int,
    made: type[FakeStore],
    whole_when_dropped: bool,
) -> None:
    store = made()
    store.whole_when_dropped = whole_when_dropped
    pool = pool_of(store, slots, policy, window)
    for active, prefetched, ahead in tokens:
        # A layer ahead: the guess for layer 1 is under way while layer 0 is claimed.
        if prefetched:
            pool.plan_prefetch(0, np.array(list(prefetched), dtype=np.int32))
            pool.start_prefetch(0)
        if ahead:
            pool.plan_prefetch(1, sorted_ids(active))
            pool.start_prefetch(1)
        use(pool, 0, sorted_ids(active))
        use(pool, 1, sorted_ids(active), early=not ahead or bool(prefetched))
        pool.advance()
        assert not store.under_way
    counters = pool.counters
    assert counters.hits + counters.misses == 2 * sum(len(active) for active, _, _ in tokens)
    assert counters.prefetched_used <= counters.prefetched


def test_a_right_guess_is_not_read_again(store: FakeStore) -> None:
    pool = pool_of(store)
    pool.plan_prefetch(0, np.array([7, 3, 5], dtype=np.int32))
    pool.start_prefetch(0)
    needed = np.array([3, 5, 9], dtype=np.int32)
    fetch = acquire(pool, 0, needed)
    pool.begin(0, fetch)
    assert [ids.tolist() for _, ids, _, _ in store.under_way.values()] == [[7, 3, 5], [9]]
    arrived = [needed[part].tolist() for part in pool.arrivals(0, fetch)]
    assert arrived == [[3, 5], [9]]
    assert (fetch.prefetched, fetch.prefetched_used) == (3, 2)
    counters = pool.counters
    assert (counters.hits, counters.misses, counters.prefetched, counters.prefetched_used) == (
        0,
        3,
        3,
        2,
    )


def test_guesses_that_a_claim_needs_the_slots_of_are_waited_for(store: FakeStore) -> None:
    pool = pool_of(store)
    n_slots = pool.layer(0).n_slots
    everything = np.arange(98, 98 + n_slots, dtype=np.int32)
    pool.plan_prefetch(0, np.arange(100, 100 + n_slots, dtype=np.int32))
    pool.start_prefetch(0)
    pool.reserve(0, everything)
    assert not store.under_way
    fetch = pool.acquire(0, everything)
    assert (fetch.prefetched, fetch.prefetched_used) == (n_slots, n_slots - 2)
    assert pool.counters.hits == 0
    assert pool.counters.misses == n_slots
    assert pool.counters.prefetched_used == n_slots - 2


def test_what_a_guess_could_not_read_is_read_when_it_is_needed(store: FakeStore) -> None:
    pool = pool_of(store)
    store.broken = {50}
    pool.plan_prefetch(0, np.array([50, 1, 2], dtype=np.int32))
    pool.start_prefetch(0)
    use(pool, 0, np.array([1, 2, 3], dtype=np.int32))
    assert 50 not in pool.layer(0).resident()
    pool.plan_prefetch(0, np.array([50, 60], dtype=np.int32))
    pool.start_prefetch(0)
    with pytest.raises(ReadFailed):
        use(pool, 0, np.array([50, 60], dtype=np.int32))
    assert not store.under_way
    store.broken = set()
    use(pool, 0, np.array([50, 60], dtype=np.int32))


def test_cancelled_reads_leave_nothing_behind(store: FakeStore) -> None:
    pool = pool_of(store)
    pool.plan_prefetch(0, np.array([1, 2], dtype=np.int32))
    pool.start_prefetch(0)
    pool.plan_prefetch(1, np.array([3, 4], dtype=np.int32))
    pool.start_prefetch(1)
    store.cancelled = True
    with pytest.raises(Cancelled):
        use(pool, 0, np.array([1, 5], dtype=np.int32))
    pool.clear()
    assert not store.under_way
    assert len(pool.layer(0).resident()) == len(pool.layer(1).resident()) == 0
    store.cancelled = False
    use(pool, 0, np.array([1, 5], dtype=np.int32))
    use(pool, 1, np.array([3, 9], dtype=np.int32))


def test_what_is_all_there_comes_as_one_part(store: FakeStore) -> None:
    pool = pool_of(store)
    for ids, parts in (([1, 2], 1), ([1, 2], 1), ([1, 3], 2), ([], 0)):
        fetch = acquire(pool, 0, np.array(ids, dtype=np.int32))
        pool.begin(0, fetch)
        found = list(pool.arrivals(0, fetch))
        assert len(found) == parts
        is_one = any(part is EVERYTHING for part in found)
        assert is_one == (fetch.acquired.n_missing == 0 and bool(ids))


def test_who_stops_in_the_middle_leaves_no_read_under_way(store: FakeStore) -> None:
    pool = pool_of(store)
    use(pool, 0, np.array([1], dtype=np.int32))
    fetch = acquire(pool, 0, np.array([1, 2], dtype=np.int32))
    pool.begin(0, fetch)
    parts: Iterator[Any] = pool.arrivals(0, fetch)
    next(parts)
    assert store.under_way
    parts.close()  # type: ignore[attr-defined]
    assert not store.under_way


def test_experts_come_one_by_one() -> None:
    store = ExpertStore()
    pool = pool_of(store)
    use(pool, 0, np.array([2, 5], dtype=np.int32))
    ids = np.array([1, 2, 4, 5, 7], dtype=np.int32)
    fetch = acquire(pool, 0, ids)
    pool.begin(0, fetch)
    parts = [ids[part].tolist() for part in pool.arrivals(0, fetch)]
    assert parts == [[2, 5], [1], [4], [7]]
    assert not store.under_way
    use(pool, 1, ids)
    use(pool, 0, ids, early=False)


def test_of_experts_that_come_one_by_one_an_error_leaves_none() -> None:
    store = ExpertStore()
    pool = pool_of(store)
    ids = np.array([1, 4, 7, 9], dtype=np.int32)
    store.broken = {4}
    fetch = acquire(pool, 0, ids)
    pool.begin(0, fetch)
    parts = pool.arrivals(0, fetch)
    assert ids[next(parts)].tolist() == [1]
    with pytest.raises(ReadFailed):
        next(parts)
    assert not store.under_way
    assert len(pool.layer(0).resident()) == 0
    store.broken = set()
    use(pool, 0, ids)


def test_who_stops_between_experts_leaves_no_read_under_way() -> None:
    store = ExpertStore()
    pool = pool_of(store)
    ids = np.array([1, 4, 7], dtype=np.int32)
    fetch = acquire(pool, 0, ids)
    pool.begin(0, fetch)
    parts: Iterator[Any] = pool.arrivals(0, fetch)
    next(parts)
    assert len(store.under_way) == 2
    parts.close()  # type: ignore[attr-defined]
    assert not store.under_way
    assert pool.layer(0).resident().tolist() == [1, 4, 7]


def test_guessed_experts_arrive_before_the_others() -> None:
    store = ExpertStore()
    pool = pool_of(store)
    pool.prefetch(0, np.array([9, 3], dtype=np.int32))
    assert len(store.under_way) == len(store.ahead) == 2
    ids = np.array([1, 3, 6], dtype=np.int32)
    fetch = acquire(pool, 0, ids)
    assert len(store.ahead) == len(store.dropped) == 1, "what is needed is read like all else"
    pool.begin(0, fetch)
    assert [ids[part].tolist() for part in pool.arrivals(0, fetch)] == [[3], [1], [6]]
    assert not store.under_way
    assert pool.layer(0).resident().tolist() == [1, 3, 6], "9 was not read to its end"
    counters = pool.counters
    assert (counters.prefetched, counters.prefetched_used) == (2, 1)
    assert counters.prefetched_bytes_wasted == 3


def test_a_guessed_expert_that_is_there_when_it_is_dropped_stays() -> None:
    store = ExpertStore()
    store.whole_when_dropped = True
    pool = pool_of(store)
    pool.prefetch(0, np.array([9, 3], dtype=np.int32))
    use(pool, 0, np.array([1, 3], dtype=np.int32))
    assert pool.layer(0).resident().tolist() == [1, 3, 9]
    use(pool, 0, np.array([3, 9], dtype=np.int32))
    assert pool.counters.hits == 2


def test_experts_are_guessed_as_far_as_a_token_leaves_slots() -> None:
    store = ExpertStore()
    pool = pool_of(store, slots=4)
    use(pool, 0, np.array([1, 2, 3, 4], dtype=np.int32))
    pool.prefetch(0, np.array([7, 1, 8], dtype=np.int32))
    assert len(store.under_way) == 1, "7, and 1 is there"
    use(pool, 0, np.array([2, 5, 6], dtype=np.int32))
    pool.prefetch(0, np.array([7, 8, 9, 10], dtype=np.int32))
    assert not store.under_way
    pool.prefetch(1, np.array([7], dtype=np.int32), is_certain=True)
    assert not store.ahead - store.dropped


def test_what_could_not_be_begun_is_not_there(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ids = pool_of(store), np.array([1, 2], dtype=np.int32)

    def closed(*_: object) -> list[int]:
        raise ValueError("the reader is closed")

    with monkeypatch.context() as patch:
        patch.setattr(store, "submit_bundles", closed)
        pool.plan_prefetch(0, ids)
        with pytest.raises(ValueError, match="closed"):
            pool.start_prefetch(0)
        fetch = acquire(pool, 1, ids)
        with pytest.raises(ValueError, match="closed"):
            pool.begin(1, fetch)
    assert len(pool.layer(0).resident()) == len(pool.layer(1).resident()) == 0
    use(pool, 0, ids)
    use(pool, 1, ids)


def test_marks_tell_what_the_last_token_found_and_what_it_read(store: FakeStore) -> None:
    pool = pool_of(store, window=5)

    def marked(layer: int) -> list[list[int]]:
        return [np.flatnonzero(mask).tolist() for mask in pool.marks(layer)]

    assert marked(0) == [[], [], []]
    use(pool, 0, np.array([3, 5, 9], dtype=np.int32))
    pool.advance()
    assert marked(0) == [[3, 5, 9], [], [3, 5, 9]]
    pool.plan_prefetch(0, np.array([7, 8], dtype=np.int32))
    pool.start_prefetch(0)
    use(pool, 0, np.array([3, 7, 20], dtype=np.int32))
    # 8 was read in vain: it is in a slot, and no token used it.
    assert marked(0) == [[3, 5, 7, 8, 9, 20], [3], [7, 20]]
    assert marked(1) == [[], [], []]
    pool.advance(2)
    assert marked(0) == [[3, 5, 7, 8, 9, 20], [], []]
    pool.clear()
    assert marked(0) == [[], [], []]


def test_marks_of_a_token_in_passes_are_those_of_all_its_pieces(store: FakeStore) -> None:
    pool = pool_of(store, slots=64)
    everything = np.arange(150, dtype=np.int32)
    use(pool, 0, everything)
    _, hit, loaded = pool.marks(0)
    assert not hit.any()
    assert np.flatnonzero(loaded).tolist() == everything.tolist()
