"""Which embeddings stay on flash, and what that leaves to slots."""

from __future__ import annotations

import dataclasses

import pytest

from flashllm.flash.row_memory import ROW_THREADS, rows_memory_bytes
from flashllm.flash.tensor_table import embedding_shape, own_embedding_bytes
from flashllm.planning.advisor import ceilings
from flashllm.planning.plan import Plan, make_plan, smallest_ceiling
from flashllm.planning.ways_to_read import THREAD_BYTES
from flashllm.units import GIB, MIB
from tests.planning.test_applied_policy import scenario


def planned(name: str, memory: int | None, own: int | None = None) -> Plan:
    """The plan of a shape; with `own` bytes of embedding that may stay on flash."""
    one = scenario(name, memory or GIB)
    sizes = one.sizes if own is None else dataclasses.replace(one.sizes, own_embedding=own)
    return make_plan(one.spec, sizes, one.options.having(memory=memory))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-30b-a3b", "llama-2-7b"])
def test_slots_have_the_room_of_the_embedding(name: str) -> None:
    one = scenario(name, GIB)
    own = own_embedding_bytes(one.spec)
    assert own > 100 * MIB
    rows = rows_memory_bytes(*embedding_shape(one.spec)) + ROW_THREADS * THREAD_BYTES
    assert rows < 4 * MIB
    in_dram, on_flash = planned(name, None, own=0), planned(name, None)
    assert (in_dram.embedding_on_flash, on_flash.embedding_on_flash) == (False, True)
    assert in_dram.smallest_bytes - on_flash.smallest_bytes == own - rows
    assert smallest_ceiling(one.spec, one.sizes, one.options) == on_flash.smallest_bytes
    ceiling = in_dram.smallest_bytes + GIB
    before, after = planned(name, ceiling, own=0), planned(name, ceiling)
    assert after.split["embeddings"] == before.split["embeddings"] - own + rows
    gained = after.split["slots"] - before.split["slots"]
    # But for the ring and the chunk, which may grow with the room, and whole slots of each layer.
    stride = one.sizes.stride
    assert gained >= 0.8 * (own - rows) - 2 * one.spec.bundled_layers * stride
    assert sum(after.split.values()) <= ceiling


@pytest.mark.parametrize("threads", [None, 1000])
def test_it_is_in_memory_where_slots_have_no_use_for_its_room(threads: int | None) -> None:
    """With more memory never fewer bundles are, and the smallest ceiling stays what it is."""
    one = scenario("llama-2-7b", GIB).having(io_threads=threads)
    whole = one.spec.bundled_layers * one.spec.bundles_per_layer * one.sizes.stride
    smallest = smallest_ceiling(one.spec, one.sizes, one.options)
    plans = [
        make_plan(one.spec, one.sizes, one.options.having(memory=mib * MIB))
        for mib in range(-(-smallest // MIB), 14_000, 20)
    ]
    slots = [plan.split["slots"] for plan in plans]
    assert slots[-1] == whole
    places = [plan.embedding_on_flash for plan in plans]
    assert (places[0], places[-1]) == (True, False)
    assert places == sorted(places, reverse=True), "once it is in memory it stays there"
    first = places.index(False)
    assert set(slots[first:]) == {whole}
    assert {plan.smallest_bytes for plan in plans} == {smallest}
    limits = {ceilings(one.having(memory=plan.ceiling_bytes), plan).whole for plan in plans[first:]}
    assert len(limits) == 1
    assert plans[first].ceiling_bytes - 25 * MIB <= limits.pop() <= plans[first].ceiling_bytes


def test_a_policy_of_few_slots_leaves_it_in_memory() -> None:
    """Where a window wants no more, an embedding on flash would be a read for nothing."""
    one = scenario("qwen3-30b-a3b", 24 * GIB).having(slot_memory=4 * GIB)
    plan = make_plan(one.spec, one.sizes, one.options)
    assert not plan.embedding_on_flash
    assert plan.split["slots"] <= 4 * GIB


def test_an_embedding_that_is_the_head_stays_in_memory() -> None:
    assert own_embedding_bytes(scenario("opt-6.7b", GIB).spec) == 0
    assert not planned("opt-6.7b", None).embedding_on_flash


def test_a_small_one_and_one_of_a_device_stay_in_memory() -> None:
    assert not planned("llama-2-7b", None, own=15 * MIB).embedding_on_flash
    one = scenario("llama-2-7b", 8 * GIB)
    assert one.sizes.may_leave_embedding(one.options)
    assert not one.sizes.may_leave_embedding(one.options.having(device="cpu", device_memory=GIB))
