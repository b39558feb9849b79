"""The window against the paper's definition, kept with plain sets."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.flash.window import LayerWindow

N_BUNDLES = 24
active_sets = st.lists(
    st.sets(st.integers(0, N_BUNDLES - 1), max_size=N_BUNDLES), min_size=1, max_size=12
)


def ids_of(active: set[int]) -> np.ndarray:
    return np.array(sorted(active), dtype=np.int32)


@given(active_sets, st.integers(1, 6))
def test_loads_are_what_the_last_k_tokens_did_not_use(tokens: list[set[int]], k: int) -> None:
    window = LayerWindow(N_BUNDLES, N_BUNDLES, k)
    for number, active in enumerate(tokens):
        before = set().union(*tokens[max(number - k, 0) : number])
        claim = window.claim(ids_of(active), number)
        assert set(claim.ids[claim.missing].tolist()) == active - before
        after = set().union(*tokens[max(number - k + 1, 0) : number + 1])
        assert set(window.resident().tolist()) == after
        assert claim.spilled == 0


@settings(max_examples=200)
@given(active_sets, st.integers(1, 6), st.integers(1, N_BUNDLES), st.data())
def test_slots_hold_what_they_are_said_to_hold(
    tokens: list[set[int]], k: int, n_slots: int, data: st.DataObject
) -> None:
    """A model of the memory: each slot is a cell, and a load writes it."""
    window = LayerWindow(N_BUNDLES, n_slots, k)
    cells: dict[int, int] = {}
    for number, active in enumerate(tokens):
        claim = window.claim(ids_of(set(sorted(active)[:n_slots])), number)
        if data.draw(st.booleans(), label="the read fails"):
            window.disown(claim)
            continue
        for bundle, slot, missing in zip(claim.ids, claim.slots, claim.missing, strict=True):
            if missing:
                cells[int(slot)] = int(bundle)
        assert len(set(claim.slots.tolist())) == len(claim.slots)
        for bundle, slot in zip(claim.ids, claim.slots, strict=True):
            assert cells[int(slot)] == int(bundle)
        assert len(window.resident()) <= n_slots


@given(
    st.lists(st.integers(0, N_BUNDLES - 1), unique=True, min_size=1),
    st.integers(1, N_BUNDLES),
    st.randoms(use_true_random=False),
)
def test_a_prompt_leaves_its_most_recent_bundles(
    bundles: list[int], n_slots: int, random: object
) -> None:
    ids = np.array(sorted(bundles), dtype=np.int32)
    last_used = np.array([random.randrange(6) for _ in bundles], dtype=np.int64)  # type: ignore[attr-defined]
    window = LayerWindow(N_BUNDLES, n_slots, window=6)
    half = len(ids) // 2
    window.place(ids[:half], last_used[:half])
    window.place(ids[half:], last_used[half:])
    resident = set(window.resident().tolist())
    assert len(resident) == min(n_slots, len(ids))
    ages = dict(zip(ids.tolist(), last_used.tolist(), strict=True))
    left_out = set(ids.tolist()) - resident
    newest_left_out = max((ages[bundle] for bundle in left_out), default=-1)
    assert all(ages[bundle] >= newest_left_out for bundle in resident)


def test_expired_slots_are_reused_before_others() -> None:
    window = LayerWindow(8, 3, window=1)
    window.claim(np.array([0, 1, 2], dtype=np.int32), 0)
    claim = window.claim(np.array([1, 5], dtype=np.int32), 1)
    assert claim.missing.tolist() == [False, True]
    assert window.resident().tolist() == [1, 5]
