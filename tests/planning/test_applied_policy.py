"""Policies by hand: what they come to on this runtime, and what is offered instead."""

from __future__ import annotations

import re

import pytest
from flashllm.convert.families.known_shapes import describe_shape

from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import assumed
from flashllm.planning.advisor import Scenario
from flashllm.planning.batch.applied_policy import apply_policy, realised_policy
from flashllm.planning.batch.policy import parse_batch_policy
from flashllm.planning.plan import make_plan
from flashllm.planning.shape_estimate import sizes_of_shape, usual_selector
from flashllm.planning.slot_allocation import least_slots
from flashllm.settings.values import parse_size
from flashllm.units import GIB, MIB


def scenario(name: str, memory: int) -> Scenario:
    spec = describe_shape(name)
    select = usual_selector(spec)
    activity = None if select == "all" else assumed(spec, select, None)
    options = ModelOptions(select=select, context=512, memory=memory)
    return Scenario(spec, sizes_of_shape(spec, 200 * MIB), activity, options, None)


@pytest.mark.parametrize("name", ["opt-6.7b", "llama-2-7b", "qwen3-30b-a3b"])
def test_what_is_realised_is_what_was_asked_for(name: str) -> None:
    facts = scenario(name, 80 * GIB)
    for weights, kv in ((0, 0), (30, 100), (62.5, 45), (100, 80)):
        policy = parse_batch_policy(f"3,4,0,{weights},0,{kv},0,100")
        made = apply_policy(policy, facts)
        got = realised_policy(made.plan, facts.spec)
        assert got.block.rows == made.options.contexts == 12
        place = got.placement
        least = least_slots(facts.spec, made.plan.select) / facts.spec.bundles_per_layer
        assert place.wc == pytest.approx(max(weights / 100, least), abs=0.03)
        assert place.cc == pytest.approx(kv / 100, abs=0.03)
        # What the model is opened with comes to the same plan.
        assert make_plan(facts.spec, facts.sizes, made.options, None) == made.plan
    assert made.options.slot_memory is None


@pytest.mark.parametrize(("name", "gib"), [("opt-6.7b", 10), ("llama-2-7b", 10)])
def test_what_is_offered_fits(name: str, gib: int) -> None:
    facts = scenario(name, gib * GIB)
    with pytest.raises(MemoryCeilingTooSmall) as refused:
        apply_policy(parse_batch_policy("8,4,0,40,0,100,0,100"), facts)
    words = str(refused.value)
    offered = re.findall(r"--policy (\S+?),? ", words.split("What fits")[1])
    assert len(offered) >= 2
    for text in offered:
        apply_policy(parse_batch_policy(text), facts)
    assert any(parse_batch_policy(text).block.rows < 32 for text in offered)
    (enough,) = re.findall(r"--memory (\S+)", words)
    assert parse_size(enough) == refused.value.smallest_bytes
    apply_policy(
        parse_batch_policy("8,4,0,40,0,100,0,100"), facts.having(memory=parse_size(enough))
    )


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("4,1,10,90,0,100,0,100", "wg is 10 %; this runtime computes on the CPU"),
        ("4,1,0,100,0,100,50,50", "hg is 50 %"),
        ("4,1,0,100,0,100,0,0", "hd is 100 %; this runtime keeps activations in DRAM"),
        ("512,3,0,100,0,100,0,100", "gbs x #gb is 1536; expected at most 1024"),
    ],
)
def test_what_no_memory_makes_possible(policy: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        apply_policy(parse_batch_policy(policy), scenario("opt-125m", 4 * GIB))


def test_two_sizes_for_keys_and_values_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="cc sets --kv-memory; leave one of them out"):
        apply_policy(
            parse_batch_policy("4,1,0,0,0,50,0,100"),
            scenario("opt-125m", 4 * GIB).having(kv_memory=64 * MIB),
        )
