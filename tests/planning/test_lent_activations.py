"""The memory of a chunk's activations, which slots have while a block of rows answers."""

from __future__ import annotations

import pytest

from flashllm.options import ModelOptions
from flashllm.planning.advisor import Scenario
from flashllm.planning.plan import Plan, make_plan
from flashllm.planning.release import slots_without
from flashllm.planning.shape_choice import ShapeChoice
from flashllm.planning.slot_allocation import least_slots
from flashllm.units import GIB, MIB
from tests.planning.test_applied_policy import scenario


def facts(memory: int, name: str = "opt-6.7b", **options: object) -> Scenario:
    given = {"kv_dtype": "int4", "context": 288, "contexts": 32} | options
    return scenario(name, memory).having(**given)  # type: ignore[arg-type]


def plan_of(one: Scenario) -> Plan:
    plan = make_plan(one.spec, one.sizes, one.options, one.profile)
    assert sum(plan.split.values()) <= plan.ceiling_bytes
    assert plan.split["slots"] == sum(plan.slots_per_layer) * one.sizes.stride
    return plan


def without_lending(one: Scenario, monkeypatch: pytest.MonkeyPatch) -> Plan:
    with monkeypatch.context() as patch:
        patch.setattr(ShapeChoice, "lends_chunk", False)
        return plan_of(one)


@pytest.mark.parametrize("mib", [6600, 6700, 7000, 8000, 11000])
@pytest.mark.parametrize("name", ["opt-6.7b", "qwen3-30b-a3b"])
def test_a_chunk_and_the_slots_that_are_left_fit_where_they_fitted_before(
    monkeypatch: pytest.MonkeyPatch, mib: int, name: str
) -> None:
    one = facts(mib * MIB, name, chunk_tokens=1024)
    plan, before = plan_of(one), without_lending(one, monkeypatch)
    lent_bytes, stride = plan.lent_activation_bytes, one.sizes.stride
    assert 0 < lent_bytes < plan.prefill.activation_bytes(one.spec, 32)
    assert plan.split["slots"] == before.split["slots"] + lent_bytes
    assert plan.split["prefill"] == before.split["prefill"] - lent_bytes
    assert plan.split | {"slots": 0, "prefill": 0} == before.split | {"slots": 0, "prefill": 0}
    assert plan.lent_blocks == before.lent_blocks
    assert plan.smallest_bytes == before.smallest_bytes
    kept = slots_without(plan, one.spec, stride, plan.borrowed_bytes(one.spec, 1024))
    assert sum(kept) * stride <= before.split["slots"]
    least = least_slots(one.spec, plan.select)
    for slots, blocks in zip(kept, plan.lent_blocks, strict=True):
        assert slots >= least + blocks * plan.prefill.bundles


def test_at_the_smallest_ceiling_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = facts(7 * GIB)
    one = one.having(memory=plan_of(one).smallest_bytes)
    plan = plan_of(one)
    assert plan.split["slots"] > without_lending(one, monkeypatch).split["slots"]
    kept = slots_without(plan, one.spec, one.sizes.stride, plan.lent_activation_bytes)
    assert set(kept) == {least_slots(one.spec, plan.select)}


def test_prompts_borrow_what_their_tokens_take() -> None:
    one = facts(7 * GIB, chunk_tokens=1024)
    plan, spec = plan_of(one), one.spec
    whole = plan.prefill.activation_bytes(spec, 32)
    assert plan.borrowed_bytes(spec, 0) == 0
    assert plan.borrowed_bytes(spec, 1024) == plan.lent_activation_bytes
    for tokens in (1, 32, 100, 512, 1024):
        left = whole - plan.lent_activation_bytes + plan.borrowed_bytes(spec, tokens)
        assert left >= (tokens + 32) * plan.prefill.token_bytes(spec)
    # A step has a token of each row, and the logits after them.
    left = whole - plan.lent_activation_bytes
    assert left >= max(32 * plan.prefill.token_bytes(spec), 2 * 32 * spec.vocab_size * 4)


def test_slots_that_hold_everything_need_no_more() -> None:
    one = facts(20 * GIB)
    plan = plan_of(one)
    everything = one.spec.bundles_per_layer
    assert set(plan.slots_per_layer) == {everything}
    assert plan.lent_activation_bytes == 0
    assert plan.borrowed_bytes(one.spec, 512) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"contexts": 1},
        {"select": "all"},
        {"slot_memory": 500 * MIB},
        {"device": "cuda", "device_memory": GIB},
    ],
    ids=["one", "all", "slots-asked-for", "device"],
)
def test_nothing_is_lent_where_slots_have_no_use_for_it(options: dict[str, object]) -> None:
    assert plan_of(facts(8 * GIB, **options)).lent_activation_bytes == 0


def test_the_paper_s_window_takes_what_it_needs_and_no_more() -> None:
    options = ModelOptions(window=4)
    one = facts(9 * GIB, window=options.window)
    plan = plan_of(one)
    assert plan.policy == "window"
    assert all(slots <= one.spec.bundles_per_layer for slots in plan.slots_per_layer)
