"""Which bundle is in which slot: both cores decide alike, and what is wrong changes nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashllm._core as native_core
from flashllm import core as chosen_core
from flashllm.bench.cache.belady import KnownRates
from flashllm.core.numpy_twin import kernels
from flashllm.core.numpy_twin.slots import HERE, IN_FLIGHT, MISSING
from flashllm.options import POLICIES
from flashllm.weight_cache.layer_cache import Acquired, LayerCache
from flashllm.weight_cache.policies import Pinned, Policy, make_policy

FIRST = 70
"""Slot of a layer that others come before."""


def ids_of(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def policy_of(name: str, n_bundles: int) -> Policy:
    if name == "pinned":
        return Pinned(np.arange(n_bundles) % 5 == 0)
    if name == "rates":
        return KnownRates(np.arange(n_bundles) % 7 / 7)
    return make_policy(name, n_bundles, 3)


def layer_of(core: ModuleType, policy: Policy, n_bundles: int, n_slots: int) -> LayerCache:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen_core, "SlotTable", core.SlotTable)
        layer = LayerCache(n_bundles, n_slots, policy, FIRST)
    assert isinstance(layer.table, core.SlotTable)
    return layer


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def assert_alike(one: Acquired, other: Acquired) -> None:
    for name in ("ids", "slots", "states"):
        assert_same(getattr(one, name), getattr(other, name))
    for name in ("evicted_early", "n_missing", "n_in_flight"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.n_missing == np.count_nonzero(one.missing)
    assert one.n_in_flight == np.count_nonzero(one.in_flight)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*POLICIES, "pinned", "rates"]),
    st.integers(1, 300),
    st.floats(0, 1),
    st.integers(0, 1 << 32),
    st.sampled_from([1, 1, 1, 40, 1000]),
)
def test_both_cores_decide_alike(
    name: str, n_bundles: int, share: float, seed: int, step: int
) -> None:
    n_slots = max(round(share * n_bundles), 1)
    cores, policies = (native_core, kernels), [policy_of(name, n_bundles) for _ in range(2)]
    layers = [
        layer_of(core, policy, n_bundles, n_slots)
        for core, policy in zip(cores, policies, strict=True)
    ]
    native, twin = layers
    rng = np.random.default_rng(seed)

    def some(most: int) -> np.ndarray:
        return rng.permutation(n_bundles)[: rng.integers(most + 1)].astype(np.int32)

    token = int(rng.choice([0, 100_000]))
    if rng.random() < 0.5:
        ids = some(n_bundles)
        used = rng.random((4, len(ids))) < 0.4
        for found, expected in zip(*(x.place(ids, used, token) for x in layers), strict=True):
            assert found.tolist() == expected.tolist()
    usable = n_slots
    for _ in range(15):
        token += step
        flying = ids_of()
        if rng.random() < 0.2:
            usable = int(rng.integers(1, n_slots + 1))
            firsts = {layer.lend(n_slots - usable) for layer in layers}
            assert firsts == {FIRST + usable}
            assert (native.table.bundle_in[usable:] < 0).all()
            ids = some(n_bundles)
            used = rng.random((2, len(ids))) < 0.4
            for found, expected in zip(*(x.place(ids, used, token) for x in layers), strict=True):
                assert_same(found, expected)
        if rng.random() < 0.6:
            guesses = some(n_bundles)
            guess, other = (x.prefetch(guesses, token) for x in layers)
            for found, expected in zip(guess, other, strict=True):
                assert_same(found, expected)
            if rng.random() < 0.2:
                for layer in layers:
                    layer.release(guess[1])
            else:
                flying = guess[0]
        ids = np.sort(some(usable - len(flying)))
        claim, claimed = (x.acquire(ids, token, flying) for x in layers)
        assert_alike(claim, claimed)
        assert claim.in_flight.tolist() == np.isin(ids, flying).tolist()
        if rng.random() < 0.1:
            for layer in layers:
                layer.release(claim.slots[claim.missing])
        assert native.resident().tolist() == twin.resident().tolist()
        assert native.table.slot_of.tolist() == twin.table.slot_of.tolist()
        assert native.table.bundle_in.tolist() == twin.table.bundle_in.tolist()
        assert (native.table.bundle_in[usable:] < 0).all()
        assert native.table.free_slots == twin.table.free_slots
        assert native.table.free_slots == np.count_nonzero(native.table.bundle_in[:usable] < 0)
        assert policies[0].terms.tolist() == policies[1].terms.tolist()


class Table:
    """Ten bundles, four slots, of which the last is free, and arguments that fit."""

    def __init__(self, core: ModuleType, first_slot: int = 0) -> None:
        self.terms = np.arange(10.0)
        self.table = core.SlotTable(10, 4, (0,), self.terms, first_slot)
        self.table.put(ids_of(0, 1, 2), ids_of(0, 1, 2) + np.int32(first_slot))

    def acquire(self, ids: np.ndarray, **changes: Any) -> Any:
        n = len(ids)
        arguments: dict[str, Any] = {
            "ids": ids,
            "in_flight": ids_of(),
            "scales": (1.0,),
            "added": (1.0,),
            "expired": -np.inf,
            "slots": np.empty(n, np.int32),
            "states": np.empty(n, np.uint8),
        }
        return self.table.acquire(**(arguments | changes))

    def prefetch(self, ids: np.ndarray, scales: tuple[float, ...] = (1.0,)) -> Any:
        return self.table.prefetch(ids, scales)

    def assert_unchanged(self) -> None:
        assert self.table.bundle_in.tolist() == [0, 1, 2, -1]
        assert self.table.slot_of.tolist() == [0, 1, 2] + [-1] * 7
        assert self.table.free_slots == 1
        assert self.terms.tolist() == list(range(10))


@pytest.mark.parametrize("limit", [0, -1, 5, 1 << 40])
def test_a_limit_of_no_slots_or_of_more_than_there_are_is_refused(
    core: ModuleType, limit: int
) -> None:
    one = Table(core)
    with pytest.raises(ValueError, match=f"limit is {limit} of 4 slots"):
        one.table.limit(limit)
    one.assert_unchanged()


def test_slots_beyond_a_limit_hold_nothing_until_they_are_allowed_again(core: ModuleType) -> None:
    one = Table(core)
    one.table.limit(2)
    assert one.table.bundle_in.tolist() == [0, 1, -1, -1]
    assert one.table.free_slots == 0
    with pytest.raises(ValueError, match="slot 3 is taken"):
        one.table.put(ids_of(9), ids_of(3))
    with pytest.raises(ValueError, match="3 bundles are needed at once in 2 slots"):
        one.acquire(ids_of(4, 5, 6))
    assert one.prefetch(ids_of(1, 7, 8)) == (1, 1)
    assert one.table.bundle_in.tolist() == [7, 1, -1, -1]
    one.acquire(ids_of(4, 5))
    assert sorted(one.table.bundle_in.tolist()) == [-1, -1, 4, 5]
    one.table.clear()
    assert one.table.free_slots == 2
    one.table.limit(4)
    assert one.table.free_slots == 4
    one.acquire(ids_of(6, 7, 8, 9))
    assert one.table.bundle_in.tolist() == [6, 7, 8, 9]


OUTSIDE = [-1, 10, (1 << 31) - 1, -(1 << 31)]


@pytest.mark.parametrize("wrong", OUTSIDE)
def test_ids_of_no_bundle_are_refused(core: ModuleType, wrong: int) -> None:
    one = Table(core)
    bad = ids_of(5, wrong)
    for call in (
        lambda: one.acquire(bad),
        lambda: one.acquire(ids_of(5), in_flight=ids_of(wrong)),
        lambda: one.prefetch(bad),
        lambda: one.table.put(ids_of(wrong), ids_of(3)),
        lambda: one.table.put(ids_of(5), ids_of(wrong)),
        lambda: one.table.evict(ids_of(0, wrong)),
    ):
        with pytest.raises(IndexError, match=f"{wrong} is not one of"):
            call()
        one.assert_unchanged()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "twice, absent": ({"ids": ids_of(5, 0, 5)}, "twice"),
    "twice, in a slot": ({"ids": ids_of(0, 5, 0)}, "twice"),
    "in flight, in no slot": ({"ids": ids_of(5, 6, 7), "in_flight": ids_of(8)}, "8 is in no slot"),
    "too many": ({"ids": ids_of(4, 5, 6, 7, 8)}, "5 bundles"),
    "too many, in flight": ({"ids": ids_of(5, 6, 7), "in_flight": ids_of(0, 1)}, "5 bundles"),
    "scales": ({"ids": ids_of(5), "scales": (1.0, 1.0)}, "scales has 2"),
    "added": ({"ids": ids_of(5), "added": ()}, "added has 0"),
    "slots": ({"ids": ids_of(5), "slots": ids_of(0, 0)}, "slots has 2"),
    "states": ({"ids": ids_of(5), "states": np.zeros(3, np.uint8)}, "states has 3"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG.keys())
def test_claims_that_do_not_fit_are_refused(
    core: ModuleType, changes: dict[str, Any], message: str
) -> None:
    one = Table(core)
    with pytest.raises(ValueError, match=message):
        one.acquire(**changes)
    one.assert_unchanged()
    assert one.acquire(ids_of(5, 6, 7)) == (3, 0, 2)


WRONG_GUESSES: dict[str, tuple[dict[str, Any], str]] = {
    "twice, absent": ({"ids": ids_of(5, 0, 5)}, "twice"),
    "twice, in a slot": ({"ids": ids_of(0, 5, 0)}, "twice"),
    "scales": ({"ids": ids_of(5), "scales": ()}, "scales has 0"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_GUESSES.values(), ids=WRONG_GUESSES.keys())
def test_guesses_that_do_not_fit_are_refused(
    core: ModuleType, changes: dict[str, Any], message: str
) -> None:
    one = Table(core)
    with pytest.raises(ValueError, match=message):
        one.prefetch(**changes)
    one.assert_unchanged()
    assert one.prefetch(ids_of(*range(9, -1, -1))) == (1, 0)


def test_arrays_of_other_types_are_refused(core: ModuleType) -> None:
    one, five = Table(core), ids_of(5)
    fixed = np.zeros(10)
    fixed.flags.writeable = False
    for call in (
        lambda: one.acquire(five.astype(np.int64)),
        lambda: one.acquire(five, in_flight=np.zeros(0)),
        lambda: core.SlotTable(10, 4, (0,), np.zeros(10, np.float32)),
        lambda: core.SlotTable(10, 4, (0,), np.zeros(20)[::2]),
        lambda: core.SlotTable(10, 4, (0,), fixed),
        lambda: one.acquire(five, slots=np.zeros(1, np.int64)),
        lambda: one.acquire(five, states=np.zeros(1, np.bool_)),
        lambda: one.prefetch(five.astype(np.int64)),
        lambda: one.table.put(five, np.zeros(1, np.int64)),
        lambda: one.table.evict(np.zeros(1, np.bool_)),
    ):
        with pytest.raises(TypeError):
            call()
        one.assert_unchanged()


def test_a_slot_that_is_taken_is_not_taken_twice(core: ModuleType) -> None:
    one = Table(core)
    for ids, slots in ((ids_of(5), ids_of(0)), (ids_of(1), ids_of(3))):
        with pytest.raises(ValueError, match="in a slot, or slot"):
            one.table.put(ids, slots)
    with pytest.raises(ValueError, match="slots has 2"):
        one.table.put(ids_of(5), ids_of(2, 3))
    one.assert_unchanged()


def test_what_is_given_up_twice_is_free_once(core: ModuleType) -> None:
    one = Table(core)
    one.table.evict(ids_of(1, 3, 1))
    assert one.table.bundle_in.tolist() == [0, -1, 2, -1]
    assert one.table.free_slots == 2
    one.table.clear()
    assert one.table.free_slots == 4
    assert (one.table.slot_of < 0).all()


def test_what_is_shown_cannot_be_written_to_and_lives_on(core: ModuleType) -> None:
    one = Table(core)
    shown = one.table.bundle_in
    with pytest.raises(ValueError, match="read-only"):
        shown[0] = 7
    one.acquire(ids_of(5))
    del one
    assert shown.tolist() == [0, 1, 2, 5]


def test_ids_may_lie_where_the_answer_goes(core: ModuleType) -> None:
    one = Table(core)
    ids = ids_of(9, 1, 8)
    assert one.acquire(ids, slots=ids) == (2, 0, 1)
    assert ids.tolist() == [3, 1, 0]
    assert one.table.bundle_in.tolist() == [8, 1, 2, 9]


def test_slots_may_be_numbered_from_another_than_the_first(core: ModuleType) -> None:
    one = Table(core, FIRST)
    one.assert_unchanged()
    slots, states = ids_of(0, 0, 0), np.zeros(3, np.uint8)
    assert one.prefetch(ids_of(1, 5, 0)) == (1, 0)
    assert (one.table.prefetched_ids[0], one.table.prefetched_slots[0]) == (5, FIRST + 3)
    assert one.acquire(ids_of(1, 6, 5), in_flight=ids_of(5), slots=slots, states=states) == (
        1,
        1,
        1,
    )
    assert slots.tolist() == [FIRST + 1, FIRST, FIRST + 3]
    assert states.tolist() == [HERE, MISSING, IN_FLIGHT]
    for wrong in (FIRST - 1, FIRST + 4, 0, 3):
        for call in (
            lambda slot: one.table.evict(slot),
            lambda slot: one.table.put(ids_of(9), slot),
        ):
            with pytest.raises(IndexError, match=f"slot {wrong} is not one of 4 from {FIRST} on"):
                call(ids_of(wrong))
    one.table.evict(ids_of(FIRST + 1))
    assert one.table.bundle_in.tolist() == [6, -1, 2, 5]


def test_the_terms_are_the_callers(core: ModuleType) -> None:
    """Who may change them; and they live as long as the table does."""
    one = Table(core)
    one.terms[0] = 50
    one.acquire(ids_of(5, 6))
    assert one.table.bundle_in.tolist() == [0, 6, 2, 5]
    assert (one.terms[5], one.terms[6]) == (6, 7)
    table = core.SlotTable(100_000, 2, (0,), np.zeros(100_000))
    others = [np.full(100_000, np.nan) for _ in range(20)]
    table.put(ids_of(3, 4), ids_of(0, 1))
    slots, states = ids_of(9), np.zeros(1, np.uint8)
    assert table.acquire(ids_of(7), ids_of(), (1.0,), (1.0,), -np.inf, slots, states) == (1, 0, 1)
    assert (slots[0], len(others)) == (0, 20)


def terms_of(count: int) -> np.ndarray:
    return np.zeros(count)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 0, (0,), terms_of(4)), "n_slots is 0"),
        ((4, 5, (0,), terms_of(4)), "n_slots is 5"),
        ((4, 4, (), terms_of(0)), "0 terms"),
        ((4, 4, (0, 1, 2), terms_of(12)), "3 terms"),
        ((4, 4, (1,), terms_of(4)), "carried is"),
        ((4, 4, (0, -2), terms_of(8)), "carried is"),
        ((4, 4, (0, 1), terms_of(4)), "terms has 4"),
        ((4, 4, (0,), terms_of(5)), "terms has 5"),
        ((4, 4, (0,), terms_of(4), -1), "first_slot is -1"),
        ((4, 4, (0,), terms_of(4), (1 << 31) - 4), "first_slot is"),
    ],
)
def test_tables_that_cannot_be(core: ModuleType, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        core.SlotTable(*arguments)
