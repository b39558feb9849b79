"""Where a block of rows has keys and values: what is chosen, against what others would read."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.kv_cache.layout import kv_bytes
from flashllm.options import ModelOptions
from flashllm.planning.advisor import Scenario
from flashllm.planning.batch.policy import Workload
from flashllm.planning.batch.rows_placement import placed_rows
from flashllm.planning.plan import ADVICE_MARGIN_BYTES, Plan, make_plan
from flashllm.units import GIB, MIB
from tests.planning.test_applied_policy import scenario


def facts(name: str, memory: int, **options: object) -> Scenario:
    return scenario(name, memory).having(kv_dtype="int4", **options)  # type: ignore[arg-type]


def plan_of(one: Scenario, options: ModelOptions) -> Plan:
    return make_plan(one.spec, one.sizes, options, one.profile)


def read(one: Scenario, plan: Plan, work: Workload, weighs: bool = False) -> float:
    """Bytes of weights for prompts and answers, and of pages in the mean of the steps.

    With what `weighs` besides: pages, more so on flash, and a ring of less than 192 MiB.
    """
    weights = one.spec.bundled_layers * one.spec.bundles_per_layer * one.sizes.stride
    missing = step = float(weights - plan.split["slots"])
    if plan.kv_pages is not None:
        tokens = work.prompt_tokens + np.linspace(0, work.new_tokens, 10_001)
        pages = plan.kv_pages.flash_bytes * np.minimum(tokens / plan.context, 1)
        paged = np.maximum(pages - plan.kv_pages.memory_bytes, 0).mean()
        step += 0.5 * pages.mean() + 1.5 * paged if weighs else paged
    if weighs:
        ring = plan.prefill_blocks * plan.prefill.bundles * one.sizes.stride
        step += 0.5 * one.spec.bundled_layers * max(192 * MIB - ring, 0)
    passes = math.ceil(plan.contexts * work.prompt_tokens / plan.prefill.tokens)
    return passes * (missing + plan.lent_activation_bytes) + work.new_tokens * step


def test_rows_that_fit_are_left_in_dram() -> None:
    one = facts("opt-6.7b", 8 * GIB)
    found = placed_rows(one, 32, Workload(32, 480))
    assert found is not None
    assert found.kv_memory is None
    assert found.contexts == 32


def test_long_prompts_get_large_chunks() -> None:
    """Each pass of prompts reads the layers, and a chunk's memory is missing at each step."""
    one = facts("opt-6.7b", 8 * GIB)
    for work, larger in ((Workload(500, 8), True), (Workload(2, 500), False)):
        found = placed_rows(one, 32, work)
        assert found is not None
        plain = plan_of(one, one.having(contexts=32).options)
        plan = plan_of(one, found)
        assert (plan.prefill.tokens > plain.prefill.tokens) == larger
        assert read(one, plan, work) <= read(one, plain, work)


@pytest.mark.parametrize("work", [Workload(400, 100), Workload(40, 460)])
def test_rows_that_do_not_fit_have_a_part_on_flash(work: Workload) -> None:
    """Nothing costs less, of all parts and chunks that fit."""
    one = facts("opt-6.7b", 7 * GIB)
    with pytest.raises(MemoryCeilingTooSmall):
        plan_of(one, one.having(contexts=160).options)
    found = placed_rows(one, 160, work)
    assert found is not None
    assert found.kv_memory is not None
    tight = one.having(contexts=160, memory=7 * GIB - ADVICE_MARGIN_BYTES)
    assert 160 * kv_bytes(one.spec, 512, "int4") > 7 * GIB
    costs = {}
    for shares in range(1, 32):
        for chunk in (None, 1024, 2048, 4096):
            part = shares * 7 * GIB // 32 // MIB * MIB
            with contextlib.suppress(MemoryCeilingTooSmall, UsageError):
                plan = plan_of(one, tight.having(kv_memory=part, chunk_tokens=chunk).options)
                costs[part, chunk] = read(one, plan, work, weighs=True)
    assert len(costs) > 10
    assert (found.kv_memory, found.chunk_tokens) == min(costs, key=lambda key: costs[key])


def test_what_was_asked_for_stays() -> None:
    work = Workload(400, 100)
    one = facts("opt-6.7b", 7 * GIB, kv_memory=900 * MIB, chunk_tokens=256)
    found = placed_rows(one, 160, work)
    assert found is not None
    assert (found.kv_memory, found.chunk_tokens) == (900 * MIB, 256)


def test_few_rows_keep_what_slots_there_are() -> None:
    """Where a step reads what it needs alone, nothing is traded for a larger chunk."""
    one = facts("opt-6.7b", 8 * GIB)
    found = placed_rows(one, 2, Workload(500, 8))
    assert found == one.having(contexts=2).options


def test_what_fits_nowhere() -> None:
    one = facts("opt-6.7b", 4 * GIB)
    assert placed_rows(one, 32, Workload(100, 100)) is None


def test_experts_read_more_with_more_rows() -> None:
    one = facts("qwen3-30b-a3b", 8 * GIB)
    found = placed_rows(one, 64, Workload(500, 8))
    assert found is not None
    assert plan_of(one, found).prefill.tokens >= 1024
