"""How slots are divided: against every way of dividing them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import Activity
from flashllm.planning.plan import make_plan
from flashllm.planning.slot_allocation import allocate, convex_hull, miss_curve
from tests.planning.test_plan import SIZES, smallest
from tests.support.specs import SPEC

SLOTS = 8
falling = st.lists(st.integers(0, 40), min_size=SLOTS, max_size=SLOTS).map(
    lambda drops: [sum(sorted(drops)[: SLOTS - i]) for i in range(SLOTS + 1)]
)
"""Loads with 0 to SLOTS slots: each slot saves no more than the one before."""


@settings(deadline=None)
@given(st.lists(falling, min_size=1, max_size=4), st.integers(0, 32))
def test_no_other_way_loads_less(curves: list[list[int]], slots: int) -> None:
    points = [[(float(x), float(y)) for x, y in enumerate(curve)] for curve in curves]
    found = allocate(points, slots, 0)
    assert sum(found) <= slots
    ways = itertools.product(range(SLOTS + 1), repeat=len(curves))
    best = min(
        sum(curve[n] for curve, n in zip(curves, way, strict=True))
        for way in ways
        if sum(way) <= slots
    )
    loads = sum(curve[n] for curve, n in zip(curves, found, strict=True))
    # Layers alike share what is left, which whole slots may not divide by.
    steepest = max(curve[0] - curve[1] for curve in curves)
    assert loads <= best + steepest * (len(curves) - 1)


def test_layers_alike_get_alike_and_the_steepest_first() -> None:
    steep, flat = [(64.0, 90.0), (100.0, 10.0)], [(64.0, 90.0), (100.0, 80.0)]
    assert allocate([flat, flat], 164, 64) == [82, 82]
    assert allocate([flat, steep], 164, 64) == [64, 100]
    assert allocate([flat, steep, flat], 238, 64) == [69, 100, 69]


def test_only_the_hull_counts() -> None:
    cliff = [(0.0, 10.0), (4.0, 10.0), (5.0, 4.0), (6.0, 5.0), (10.0, 0.0)]
    assert convex_hull(cliff) == [(0.0, 10.0), (5.0, 4.0), (10.0, 0.0)]


def test_a_curve_is_that_of_longer_and_longer_windows() -> None:
    activity = Activity((1, 2, 4), ((50.0,), (80.0,), (110.0,)), ((60,), (90,), (130,)), (50.0,))
    curve = miss_curve(activity, 0, 20, 1000)
    assert curve[0] == (20.0, 50.0)
    assert (50.0, 30.0) in curve
    assert curve[-1] == (1000.0, 0.0)
    slots, loads = zip(*curve, strict=True)
    assert list(slots) == sorted(slots)
    assert list(loads) == sorted(loads, reverse=True)
    # Of one window nothing is known to return, so slots below all of them save nothing.
    alone = Activity((1,), ((50.0,),), ((60,),), (50.0,))
    assert miss_curve(alone, 0, 20, 1000)[1:] == [(50.0, 50.0), (1000.0, 0.0)]


@pytest.mark.parametrize("spare", [0, 100, 900, 3000, 1 << 20])
def test_the_default_policy_uses_all_slots_there_is_room_for(spare: int) -> None:
    fixed = smallest() - SPEC.n_layers * 64 * SIZES.stride
    slots = 64 * SPEC.n_layers + spare
    plan = make_plan(
        SPEC, SIZES, ModelOptions(memory=fixed + slots * SIZES.stride, select="predicted")
    )
    most = SPEC.n_layers * SPEC.bundles_per_layer
    assert min(slots, most) - SPEC.n_layers <= sum(plan.slots_per_layer) <= min(slots, most)
    assert all(64 <= n <= SPEC.bundles_per_layer for n in plan.slots_per_layer)
    assert plan.seed_tokens >= 64
