"""What a ceiling leaves over: where slots are short, blocks of a prompt's ring lie in them."""

from __future__ import annotations

import dataclasses

import pytest
from flashllm.convert.families.known_shapes import describe_shape
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import assumed
from flashllm.planning.plan import make_plan
from flashllm.planning.slot_allocation import (
    LEAST_BLOCKS,
    PROMPT_RING,
    STEP_RING,
    SlotAllocation,
    SlotAllocator,
    lend,
)
from tests.planning.test_plan import SIZES
from tests.support.specs import SPEC

STRIDE = SIZES.stride
BLOCK = 64
EVERYTHING = SPEC.n_layers * SPEC.bundles_per_layer


def allocator(
    select: str = "predicted", policy: str = "blend", block: int = BLOCK
) -> SlotAllocator:
    return SlotAllocator(SPEC, STRIDE, SIZES.activity, select, policy, None, block)


def ring(allocation: SlotAllocation) -> int:
    return allocation.own_blocks + sum(allocation.lent_blocks)


@settings(deadline=None)
@given(
    st.integers(0, 2 * EVERYTHING),
    st.sampled_from(["predicted", "gate", "oracle", "all"]),
    st.sampled_from(["blend", "window"]),
    st.sampled_from([1, 16, 64, SPEC.bundles_per_layer]),
)
def test_slots_and_own_blocks_take_what_there_is_and_lent_ones_leave_the_least(
    spare: int, select: str, policy: str, block: int
) -> None:
    least = 0 if select == "all" else 64
    slots = SPEC.n_layers * least + spare
    found = allocator(select, policy, block).allocate(slots * STRIDE)
    own_slots = (found.own_blocks - LEAST_BLOCKS) * block
    assert sum(found.slots) + own_slots <= slots
    assert LEAST_BLOCKS <= found.own_blocks <= ring(found) <= 24
    for n_slots, blocks in zip(found.slots, found.lent_blocks, strict=True):
        assert n_slots <= SPEC.bundles_per_layer
        assert n_slots - blocks * block >= least
    if select in ("all", "oracle"):
        assert not any(found.lent_blocks)


@pytest.mark.parametrize("select", ["predicted", "gate"])
def test_a_ring_takes_no_slots_where_slots_are_short(select: str) -> None:
    slots = EVERYTHING - 10 * BLOCK
    found = allocator(select).allocate(slots * STRIDE)
    assert found.own_blocks == LEAST_BLOCKS
    assert slots - SPEC.n_layers <= sum(found.slots) <= slots
    spare = slots - SPEC.n_layers * 64
    assert ring(found) == LEAST_BLOCKS + spare // 12 // BLOCK > LEAST_BLOCKS


def test_a_ring_is_as_long_as_where_a_token_needs_one_for_itself() -> None:
    for slots in range(SPEC.n_layers * 64, 2 * EVERYTHING, 37):
        asked = allocator("oracle").allocate(slots * STRIDE)
        found = allocator("predicted").allocate(slots * STRIDE)
        assert ring(found) == asked.own_blocks
        assert sum(found.slots) >= sum(asked.slots)


def test_steps_that_read_layers_whole_are_read_further_ahead() -> None:
    slots = EVERYTHING - 10 * BLOCK
    prompt = allocator()
    steps = dataclasses.replace(prompt, ring=STEP_RING)
    found, longer = prompt.allocate(slots * STRIDE), steps.allocate(slots * STRIDE)
    spare = slots - SPEC.n_layers * 64
    # Slots lend whole blocks; what is left of each layer's is too little for one more.
    most = LEAST_BLOCKS + spare // BLOCK
    assert most - SPEC.n_layers <= ring(longer) <= most
    assert ring(longer) > 4 * ring(found)
    assert sum(longer.slots) + (longer.own_blocks - LEAST_BLOCKS) * BLOCK <= slots
    assert longer.own_blocks <= LEAST_BLOCKS + SPEC.n_layers
    single = dataclasses.replace(steps, block_bundles=1).allocate(slots * STRIDE)
    assert ring(single) == STEP_RING.most_blocks > PROMPT_RING.most_blocks


def test_slots_that_are_asked_for_come_before_a_long_ring() -> None:
    slots = EVERYTHING - 10 * BLOCK
    steps = dataclasses.replace(allocator(), ring=STEP_RING, slots_most=slots // 2)
    prompt = dataclasses.replace(steps, ring=PROMPT_RING)
    for memory in (slots // 2 + BLOCK, slots * 3 // 4, slots):
        found, least = (one.allocate(memory * STRIDE) for one in (steps, prompt))
        assert sum(found.slots) >= min(sum(least.slots), slots // 2 - BLOCK)
        assert ring(found) >= ring(least)


def test_only_a_block_of_many_rows_asks_for_that() -> None:
    few, many = (
        make_plan(SPEC, SIZES, ModelOptions(select="predicted", memory=1 << 30, contexts=contexts))
        for contexts in (1, 200)
    )
    assert not few.reads_layers_whole
    assert few.prefill_blocks <= PROMPT_RING.most_blocks
    assert many.reads_layers_whole
    assert many.prefill_blocks == STEP_RING.most_blocks


def test_nothing_is_lent_where_there_is_room_for_all() -> None:
    found = allocator().allocate(2 * EVERYTHING * STRIDE)
    assert sum(found.slots) == EVERYTHING
    assert found.own_blocks > LEAST_BLOCKS
    assert not any(found.lent_blocks)


def test_layers_that_could_lend_no_block_leave_the_ring_its_own() -> None:
    whole = SPEC.bundles_per_layer
    spec = dataclasses.replace(SPEC, n_layers=32)
    given_allocator = SlotAllocator(spec, STRIDE, None, "predicted", "blend", None, whole)
    found = given_allocator.allocate(32 * (whole - 1) * STRIDE)
    assert not any(found.lent_blocks)
    assert found.own_blocks == LEAST_BLOCKS + 32 * (whole - 1 - 64) // 12 // whole > LEAST_BLOCKS
    assert set(found.slots) == {
        (32 * (whole - 1) - (found.own_blocks - LEAST_BLOCKS) * whole) // 32
    }


def test_who_has_most_left_lends() -> None:
    assert lend([100, 200, 90], 30, 40, 0) == [0, 0, 0]
    assert lend([100, 200, 90], 30, 40, 3) == [0, 3, 0]
    assert lend([100, 200, 90], 30, 40, 5) == [1, 4, 0]
    assert lend([100, 200, 90], 30, 40, 100) == [2, 5, 1]
    assert lend([100, 100], 30, 70, 3) == [1, 1]
    assert lend([69, 10], 30, 40, 3) == [0, 0]


def test_experts_have_like_slots_in_all_layers_however_they_differ() -> None:
    spec = describe_shape("qwen3-30b-a3b")
    activity = assumed(spec, "router")
    assert len(set(activity.s_agg[4])) > 1
    allocator = SlotAllocator(spec, STRIDE, activity, "router", "blend", None, 1)
    for slots in (9 * spec.n_layers, 31 * spec.n_layers - 1, 5000):
        found = allocator.allocate(slots * STRIDE)
        assert max(found.slots) - min(found.slots) <= 1
        # All are given out, but for those that more blocks of the ring take.
        more = (found.own_blocks - LEAST_BLOCKS) * allocator.block_bundles
        assert sum(found.slots) == slots - more
