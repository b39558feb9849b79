"""What tokens use and load: against a window that is really moved, and bad recordings."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from flashllm.predictors.window_counter import WINDOWS, WindowCounter

from flashllm.errors import LayoutError
from flashllm.planning.activation_stats import Activity, assumed, recorded
from flashllm.weight_cache.layer_cache import LayerCache
from flashllm.weight_cache.rounds import split_rounds
from tests.support.specs import SPEC

N_BUNDLES = 4096
TOKENS = 1200
WARMING = 200


def sets(seed: int = 1) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    """Active sets that persist: of each one three quarters are those of the token before."""
    rng = np.random.default_rng(seed)
    likely = rng.pareto(1.5, N_BUNDLES) + 0.05
    active = rng.random(N_BUNDLES) < 0.1
    found = []
    for _ in range(TOKENS):
        renewed = rng.random(N_BUNDLES) < 0.25
        fresh = rng.random(N_BUNDLES) < np.minimum(0.1 * likely / likely.mean(), 0.9)
        active = np.where(renewed, fresh, active)
        found.append(np.flatnonzero(active).astype(np.int32))
    return found


def counted(tokens: list[np.ndarray[Any, np.dtype[np.int32]]]) -> Activity:
    counter = WindowCounter(N_BUNDLES)
    bits = np.zeros((len(tokens), N_BUNDLES), np.uint8)
    for row, ids in zip(bits, tokens, strict=True):
        row[ids] = 1
    counter.add(np.packbits(bits, axis=1, bitorder="little"))
    use = counter.use()
    return Activity(
        WINDOWS,
        tuple((value,) for value in use.s_agg),
        tuple((value,) for value in use.slots_needed),
        (use.s_agg[0],),
    )


def moved(tokens: list[np.ndarray[Any, np.dtype[np.int32]]], slots: int, window: int) -> float:
    """Bundles a token that a real window loads."""
    layer = LayerCache(N_BUNDLES, slots, window)
    missing = 0
    for number, ids in enumerate(tokens):
        for piece in split_rounds(ids, slots):
            claim = layer.acquire(piece, number)
            missing += int(claim.missing.sum()) if number >= WARMING else 0
    return missing / (len(tokens) - WARMING)


@pytest.mark.parametrize("window", [1, 4, 5, 7, 16, 40])
def test_a_window_with_room_loads_the_increment(window: int) -> None:
    tokens = sets()
    expected = counted(tokens).loads(0, N_BUNDLES, window)
    assert expected == pytest.approx(moved(tokens, N_BUNDLES, window), rel=0.08, abs=0.3)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.65, 0.9, 1.0, 1.5, 3.0])
def test_a_window_without_room_loads_what_the_slots_do_not_hold(share: float) -> None:
    """Slots in parts of what one token needs at most: below 1 lies the cliff."""
    tokens = sets()
    activity = counted(tokens)
    slots = max(64, int(activity.slots_needed[0][0] * share))
    found = moved(tokens, slots, 64)
    assert activity.loads(0, slots, 64) == pytest.approx(found, rel=0.1, abs=1.5)


def test_nothing_stays_below_the_cliff() -> None:
    activity = counted(sets())
    used = activity.used(0)
    assert activity.loads(0, int(used / 3), 16) == pytest.approx(used)
    assert activity.extra_rounds(0, int(used / 3)) >= 2
    assert activity.extra_rounds(0, int(used * 2)) == 0
    assert activity.loads(0, N_BUNDLES, 16) < used / 4


def test_more_slots_and_longer_windows_never_load_more() -> None:
    activity = counted(sets())
    by_slots = [activity.loads(0, slots, 20) for slots in range(64, N_BUNDLES, 64)]
    assert all(late <= early + 1e-9 for early, late in itertools.pairwise(by_slots))
    by_window = [activity.loads(0, N_BUNDLES, window) for window in range(1, 100)]
    assert by_window[0] > by_window[10] > by_window[60] >= 0


def test_what_is_assumed_is_named_and_can_be_overridden() -> None:
    usual = assumed(SPEC, "predicted")
    assert usual.used(0) == pytest.approx(0.0964 * 1024, rel=0.001)
    assert usual.active[0] == pytest.approx(0.03 * 1024)
    assert "9.6%" in usual.assumed
    given = assumed(SPEC, "predicted", 0.2)
    assert given.used(3) == pytest.approx(0.2 * 1024)
    assert "20.0%" in given.assumed
    assert "given" in given.assumed
    gated = dataclasses.replace(SPEC, gate="resident")
    assert assumed(gated, "gate").used(0) == pytest.approx(0.11 * 1024)
    assert max(map(max, assumed(SPEC, "predicted", 0.9).s_agg)) == 1024


RECORDED: dict[str, Any] = {
    "windows": [1, 2],
    "predicted": {"slots_needed": [[9] * 4, [12] * 4], "s_agg": [[5.5] * 4, [8.0] * 4]},
    "oracle": {"slots_needed": [[5] * 4, [6] * 4], "s_agg": [[2.5] * 4, [3.0] * 4]},
}


def test_a_recording_is_of_its_selector() -> None:
    predicted = recorded(RECORDED, "predicted", SPEC, "here")
    assert (predicted.used(0), predicted.active[0], predicted.assumed) == (5.5, 2.5, "")
    assert recorded(RECORDED, "gate", SPEC, "here").used(0) == 2.5


def test_of_one_window_nothing_is_known_to_return() -> None:
    alone = {name: [RECORDED["predicted"][name][0]] for name in ("slots_needed", "s_agg")}
    found = recorded({"windows": [1], "predicted": alone}, "predicted", SPEC, "here")
    assert found.increment(0, 1) == 5.5
    for slots, window in ((1024, 1), (1024, 40), (64, 5)):
        assert found.loads(0, slots, window) == pytest.approx(5.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": [2, 1]},
        {"windows": [0, 1]},
        {"windows": [2, 3]},
        {"windows": []},
        {"windows": "ab"},
        {"predicted": {}},
        {"predicted": {"slots_needed": [[9] * 3, [12] * 4]}},
        {"predicted": {"slots_needed": [[9] * 4, [5000] * 4]}},
        {"predicted": {"slots_needed": [[9] * 4, [-1] * 4]}},
        {"predicted": {"slots_needed": [[9] * 4, [12] * 4], "s_agg": [[float("nan")] * 4] * 2}},
        {"oracle": []},
    ],
    ids=str,
)
def test_a_recording_that_does_not_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match=r"here: activity\.json"):
        recorded(RECORDED | changes, "predicted", SPEC, "here")
