"""The slots of a layer under every policy, against plain Python that keeps sets and sorts lists."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.errors import UsageError
from flashllm.options import DEFAULT_POLICY, POLICIES
from flashllm.planning.asked_options import choose_policy
from flashllm.weight_cache.layer_cache import LayerCache
from flashllm.weight_cache.policies import (
    AGEING,
    FAST,
    SLOW,
    Pinned,
    make_policies,
    make_policy,
)

N_BUNDLES = 24
active_sets = st.lists(
    st.sets(st.integers(0, N_BUNDLES - 1), max_size=N_BUNDLES), min_size=1, max_size=12
)
Worth = Callable[[list[int], int], float]
"""From the tokens that used a bundle, ascending, and the running one, to what it is worth."""


def _counted(*counts: tuple[float, float]) -> Worth:
    def worth(uses: list[int], token: int) -> float:
        return sum(w * (1 - d) * sum(d ** (token - use) for use in uses) for d, w in counts)

    return worth


def _recent(uses: list[int], token: int) -> float:
    return uses[-1] if uses else -1e9


WORTH: dict[str, Worth] = {
    "blend": _counted(FAST, SLOW),
    "frequency": _counted(AGEING),
    "lru2": lambda uses, token: (
        (uses[-2] if len(uses) > 1 else -1e9) + (uses[-1] if uses else -1e9) * 1e-6
    ),
    "lru": _recent,
    "window": _recent,
}


def ids_of(active: set[int]) -> np.ndarray:
    return np.array(sorted(active), dtype=np.int32)


def layer_of(policy: str, n_slots: int, window: int = 4, first_slot: int = 0) -> LayerCache:
    return LayerCache(N_BUNDLES, n_slots, make_policy(policy, N_BUNDLES, window), first_slot)


@given(active_sets, st.integers(1, 6))
def test_loads_are_what_the_last_k_tokens_did_not_use(tokens: list[set[int]], k: int) -> None:
    """The paper's window, by its definition."""
    window = LayerCache(N_BUNDLES, N_BUNDLES, k)
    for number, active in enumerate(tokens):
        before = set().union(*tokens[max(number - k, 0) : number])
        claim = window.acquire(ids_of(active), number)
        assert set(claim.ids[claim.missing].tolist()) == active - before
        after = set().union(*tokens[max(number - k + 1, 0) : number + 1])
        assert set(window.resident().tolist()) == after
        assert claim.evicted_early == 0


@settings(max_examples=200)
@given(active_sets, st.sampled_from(POLICIES), st.integers(1, N_BUNDLES), st.data())
def test_slots_hold_what_they_are_said_to_hold(
    tokens: list[set[int]], policy: str, n_slots: int, data: st.DataObject
) -> None:
    """A model of the memory: each slot is a cell, and a load writes it."""
    layer = layer_of(policy, n_slots)
    cells: dict[int, int] = {}

    def check(ids: np.ndarray, slots: np.ndarray) -> None:
        assert len(set(slots.tolist())) == len(slots)
        for bundle, slot in zip(ids, slots, strict=True):
            assert cells[int(slot)] == int(bundle)
        assert len(layer.resident()) <= n_slots

    for number, active in enumerate(tokens):
        ids = ids_of(set(sorted(active)[:n_slots]))
        flying = np.zeros(0, np.int32)
        if data.draw(st.booleans(), label="guess"):
            room = n_slots - len(ids)
            wild = data.draw(st.permutations(range(N_BUNDLES)), label="guesses")
            resident = set(layer.resident().tolist())
            absent = [bundle for bundle in wild if bundle not in resident][:room]
            present = [bundle for bundle in wild if bundle in resident][: len(wild) // 2]
            guesses = np.array([*absent, *present], np.int32)
            found, slots = layer.prefetch(guesses, number)
            assert found.tolist() == absent[: n_slots - len(present)]
            assert set(present) <= set(layer.resident().tolist())
            if data.draw(st.booleans(), label="the guessed read fails"):
                layer.release(slots)
            else:
                cells |= dict(zip(slots.tolist(), found.tolist(), strict=True))
                check(found, slots)
                flying = found
        claim = layer.acquire(ids, number, flying)
        assert set(flying.tolist()) <= set(layer.resident().tolist())
        if data.draw(st.booleans(), label="the read fails"):
            layer.release(claim.slots[claim.missing])
            continue
        for bundle, slot, missing in zip(claim.ids, claim.slots, claim.missing, strict=True):
            if missing:
                cells[int(slot)] = int(bundle)
        check(claim.ids, claim.slots)


@settings(max_examples=300)
@given(active_sets, st.sampled_from(POLICIES), st.integers(1, N_BUNDLES))
def test_what_is_given_up_is_worth_least(tokens: list[set[int]], policy: str, n_slots: int) -> None:
    layer, worth = layer_of(policy, n_slots), WORTH[policy]
    uses: dict[int, list[int]] = {bundle: [] for bundle in range(N_BUNDLES)}
    held: set[int] = set()
    for number, whole in enumerate(tokens):
        active = set(sorted(whole)[:n_slots])
        for bundle in active:
            uses[bundle].append(number)
        if policy == "window":
            held = {b for b in held if uses[b][-1] > number - 4}
        claim = layer.acquire(ids_of(active), number)
        assert set(claim.ids[claim.missing].tolist()) == active - held
        after = set(layer.resident().tolist())
        lost, kept = held - after, (held & after) - active
        assert after == (held - lost) | active
        assert len(lost) == claim.evicted_early == max(len(held | active) - n_slots, 0)
        most = max((worth(uses[b], number) for b in lost), default=-np.inf)
        assert all(worth(uses[b], number) >= most - 1e-9 for b in kept)
        held = after


@given(active_sets, st.integers(1, 8), st.integers(1, N_BUNDLES), st.sampled_from(POLICIES))
def test_a_prompt_leaves_what_is_worth_most(
    tokens: list[set[int]], blocks: int, n_slots: int, policy: str
) -> None:
    layer, last = layer_of(policy, n_slots), len(tokens) - 1
    used = np.zeros((len(tokens), N_BUNDLES), np.bool_)
    for row, active in zip(used, tokens, strict=True):
        row[sorted(active)] = True
    for part in np.array_split(np.arange(N_BUNDLES), blocks):
        ids = part[used[:, part].any(axis=0)].astype(np.int32)
        kept, slots = layer.place(ids, used[:, ids], last)
        assert len(set(slots.tolist())) == len(slots) == len(kept)
    resident = set(layer.resident().tolist())
    seen = set().union(*tokens)
    assert len(resident) == min(n_slots, len(seen))
    value = {b: WORTH[policy]([t for t, a in enumerate(tokens) if b in a], last) for b in seen}
    best_left_out = max((value[b] for b in seen - resident), default=-np.inf)
    assert all(value[b] >= best_left_out - 1e-9 for b in resident)


@given(st.sets(st.integers(0, N_BUNDLES - 1)), st.integers(1, N_BUNDLES), st.integers(1, 8))
def test_a_prompt_evicts_nothing_that_its_later_blocks_need(
    active: set[int], n_slots: int, blocks: int
) -> None:
    layer = layer_of(DEFAULT_POLICY, n_slots)
    layer.acquire(np.arange(N_BUNDLES - n_slots, N_BUNDLES, dtype=np.int32), 0)
    for part in np.array_split(np.arange(N_BUNDLES), blocks):
        until, held = int(part[-1]) + 1, set(layer.resident().tolist())
        ids = ids_of(active & set(part.tolist()))
        layer.place(ids, np.ones((2, len(ids)), np.bool_), 1, until)
        assert all(bundle < until for bundle in held - set(layer.resident().tolist()))
    last = ids_of(active)
    layer.place(last, np.ones((2, len(last)), np.bool_), 2, N_BUNDLES)
    assert len(active & set(layer.resident().tolist())) == min(len(active), n_slots)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_counts_as_if_it_had_been_decoded(policy: str) -> None:
    rng = np.random.default_rng(3)
    used = rng.random((9, N_BUNDLES)) < 0.4
    used[-1] |= ~used.any(axis=0)
    everything = np.arange(N_BUNDLES, dtype=np.intp)
    seeded, decoded = (make_policy(policy, N_BUNDLES, 5) for _ in range(2))
    seeded.seed(everything, used, 8)
    for number, row in enumerate(used):
        decoded.use(np.flatnonzero(row), number)
    assert seeded.values(everything, 8) == pytest.approx(decoded.values(everything, 8))


@pytest.mark.parametrize("policy", POLICIES)
def test_values_are_the_same_after_many_tokens(policy: str) -> None:
    """Growing weights are scaled down again long before they overflow."""
    some = make_policy(policy, 3, 5)
    uses: list[list[int]] = [[], [], []]
    for number in range(0, 9000, 3):
        ids = [0, 1 + number % 2] if number < 8000 else [0]
        some.use(np.array(ids, np.intp), number)
        for bundle in ids:
            uses[bundle].append(number)
    expected = [WORTH[policy](one, 8997) for one in uses]
    assert some.values(np.arange(3), 8997) == pytest.approx(expected, rel=1e-6, abs=1e-40)


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_that_share_what_a_use_counts_do_as_if_they_had_their_own(policy: str) -> None:
    shared = make_policies(policy, 3, 6, 5)
    everything, rng = np.arange(6), np.random.default_rng(11)
    for _ in range(2):
        alone = [make_policy(policy, 6, 5) for _ in shared]
        for number in range(0, 9000, 5):  # scaled down again on the way
            for layers in zip(shared, alone, strict=True):
                ids = np.flatnonzero(rng.random(6) < 0.4)
                for layer in layers:
                    layer.use(ids, number)
            if number % 500 == 0:
                for one, other in zip(shared, alone, strict=True):
                    expected = other.values(everything, number)
                    assert one.values(everything, number).tolist() == expected.tolist()
        for one in shared:
            one.clear()


@pytest.mark.parametrize("policy", POLICIES)
def test_values_after_a_long_prompt(policy: str) -> None:
    """Its first uses come so late that growing weights would overflow at once."""
    some = make_policy(policy, 2, 5)
    last = 200_000
    some.seed(np.array([0], np.intp), np.ones((4, 1), np.bool_), last)
    some.use(np.array([0], np.intp), last + 1)
    expected = [WORTH[policy](list(range(last - 3, last + 2)), last + 1), WORTH[policy]([], 0)]
    assert some.values(np.arange(2), last + 1) == pytest.approx(expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_claims_lead_to_the_same_slots(policy: str) -> None:
    """Wherever the layer's slots begin."""

    def some(rng: np.random.Generator) -> np.ndarray:
        return np.sort(rng.choice(N_BUNDLES, 6, replace=False)).astype(np.int32)

    def slots(first_slot: int) -> list[int]:
        rng, found = np.random.default_rng(7), []
        layer = layer_of(policy, 9, first_slot=first_slot)
        ids = some(rng)
        found += layer.place(ids, rng.random((3, 6)) < 0.5, 2)[1].tolist()
        for number in range(3, 60):
            _, guessed = layer.prefetch(some(rng), number)
            found += guessed.tolist()
            claim = layer.acquire(some(rng), number)
            found += claim.slots.tolist()
            if number % 9 == 0:
                layer.release(claim.slots[claim.missing])
        return found

    assert slots(0) == slots(0)
    assert [slot - 1000 for slot in slots(1000)] == slots(0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_guess_takes_the_place_of_the_worst_that_was_not_guessed_and_is_no_use(
    policy: str,
) -> None:
    layer = layer_of(policy, 4)
    for number in range(3):
        layer.acquire(np.array([0, 1, 3], np.int32), number)
    layer.acquire(np.array([0, 1, 2], np.int32), 3)
    assert 3 in layer.resident() or policy == "window"
    before = set(layer.resident().tolist())
    found, _ = layer.prefetch(np.array([5, 2, 0], np.int32), 4)
    assert found.tolist() == [5]
    assert set(layer.resident().tolist()) >= {0, 2, 5}
    assert len(before - set(layer.resident().tolist())) <= 1
    # Its slot is safe from a claim that is told of it.
    layer.acquire(np.array([0, 6, 7], np.int32), 4, np.array([5], np.int32))
    assert 5 in layer.resident()
    # It was wrong: never used, it goes before all others.
    layer.acquire(np.array([8], np.int32), 5)
    assert 5 not in layer.resident()


def test_guesses_that_there_is_no_room_for_are_left_out() -> None:
    layer = layer_of("blend", 3)
    layer.acquire(np.array([0, 1, 2], np.int32), 0)
    found, _ = layer.prefetch(np.array([5, 0, 6, 7, 1], np.int32), 1)
    assert found.tolist() == [5]
    assert layer.resident().tolist() == [0, 1, 5]


def test_what_is_pinned_stays() -> None:
    hot = np.zeros(N_BUNDLES, np.bool_)
    hot[[3, 4]] = True
    layer = LayerCache(N_BUNDLES, 4, Pinned(hot))
    for number, ids in enumerate([[3, 4], [0, 1], [5, 6], [0, 7]]):
        layer.acquire(np.array(ids, np.int32), number)
        assert {3, 4} <= set(layer.resident().tolist())


def test_expired_slots_are_reused_before_others() -> None:
    layer = LayerCache(8, 3, 1)
    layer.acquire(np.array([0, 1, 2], dtype=np.int32), 0)
    claim = layer.acquire(np.array([1, 5], dtype=np.int32), 1)
    assert claim.missing.tolist() == [False, True]
    assert layer.resident().tolist() == [1, 5]


def test_a_window_asked_for_is_the_papers() -> None:
    assert choose_policy(None, None) == DEFAULT_POLICY
    assert choose_policy(None, 5) == choose_policy("window", 5) == "window"
    assert choose_policy("lru", None) == "lru"
    with pytest.raises(UsageError, match="--policy window, or no --window"):
        choose_policy("lru", 5)
    with pytest.raises(UsageError, match="expected one of blend"):
        choose_policy("belady", None)
