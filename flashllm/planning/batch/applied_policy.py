"""A policy by hand on this runtime: the options that a model is opened with, and what comes of it.

Rows of a block are contexts, weights in DRAM are slots, keys and values in DRAM are pages. All rows
go through a layer together, in however many batches they were to be. What does not fit is refused
with what would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.kv_cache.layout import pages_memory
from flashllm.options import DEFAULT_KV_DTYPE, ModelOptions
from flashllm.planning.advisor import Scenario
from flashllm.planning.asked_options import context_of
from flashllm.planning.batch.placement import SHARES, Placement
from flashllm.planning.batch.policy import BatchPolicy, Block
from flashllm.planning.batch.policy_search import most_that_holds
from flashllm.planning.plan import ADVICE_MARGIN_BYTES, Plan, make_plan
from flashllm.spec import ModelSpec
from flashllm.units import MIB, format_bytes

ROWS_MAX: Final = 1024
"""Rows at once; each takes memory for its own keys and values."""
NO_DEVICE: Final = "this runtime computes on the CPU, so nothing can be placed on a device"
BARRED: Final = {
    **dict.fromkeys(("wg", "cg", "hg"), NO_DEVICE),
    "hd": "this runtime keeps activations in DRAM",
}
"""Shares that must be 0, and why."""
_TOLERANCE = 0.005
"""Share of all weights that rounding to whole slots may miss."""
_TRIES = 20


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy, and the options and the plan that it comes to."""

    requested: BatchPolicy
    options: ModelOptions
    plan: Plan


def apply_policy(policy: BatchPolicy, scenario: Scenario) -> AppliedPolicy:
    """The options of a policy under the scenario's ceiling.

    `UsageError` for what no memory would make possible; `MemoryCeilingTooSmall`, with what would
    do, for what does not fit.
    """
    values = dict(zip(SHARES, policy.placement.values, strict=True))
    for share, why in BARRED.items():
        if values[share] > 0:
            raise UsageError(f"--policy {policy}: {share} is {100 * values[share]:g} %; {why}")
    if policy.block.rows > ROWS_MAX:
        raise UsageError(
            f"--policy {policy}: gbs x #gb is {policy.block.rows}; expected at most {ROWS_MAX}"
        )
    if scenario.options.kv_memory is not None:
        raise UsageError(f"--policy {policy}: cc sets --kv-memory; leave one of them out")
    plan, problem = _tried(policy, scenario)
    if plan is not None and not problem:
        return AppliedPolicy(policy, _options(policy, scenario), plan)
    ceiling_bytes = scenario.options.memory
    assert ceiling_bytes is not None, "without a ceiling everything fits"
    raise MemoryCeilingTooSmall(
        f"--policy {policy} does not fit into {format_bytes(ceiling_bytes)}: {problem}."
        f" {_would_fit(policy, scenario)}",
        _needed_bytes(policy, scenario),
    )


def realised_policy(plan: Plan, spec: ModelSpec) -> BatchPolicy:
    """The policy that a plan amounts to: all rows go through a layer as one batch."""
    weights = sum(plan.slots_per_layer) / (spec.bundled_layers * spec.bundles_per_layer)
    kv, pages = 1.0, plan.kv_pages
    if pages is not None and pages.flash_bytes:
        kv = pages.slots / (pages.blocks * spec.n_layers * spec.n_kv_heads)
    shares = (0.0, weights, 1 - weights, 0.0, kv, 1 - kv, 0.0, 1.0, 0.0)
    return BatchPolicy(Block(plan.contexts, 1), Placement.rounded(shares))


def _options(policy: BatchPolicy, scenario: Scenario) -> ModelOptions:
    spec, place, options = scenario.spec, policy.placement, scenario.options
    rows, kv_memory, slot_memory = policy.block.rows, None, None
    if place.cd > 0:
        encoding = options.kv_dtype or DEFAULT_KV_DTYPE
        kv_memory = pages_memory(spec, context_of(spec, options), rows, encoding, place.cc)
    if place.wd > 0:
        slot_memory = round(place.wc * _weight_bytes(scenario))
    return options.having(contexts=rows, kv_memory=kv_memory, slot_memory=slot_memory)


def _weight_bytes(scenario: Scenario) -> int:
    """All bundles."""
    spec = scenario.spec
    return spec.bundled_layers * spec.bundles_per_layer * scenario.sizes.stride


def _tried(
    policy: BatchPolicy, scenario: Scenario, ceiling_bytes: int | None = None
) -> tuple[Plan | None, str]:
    """The plan of a policy, if there is one, and what it lacks."""
    options = _options(policy, scenario)
    if ceiling_bytes is not None:
        options = options.having(memory=ceiling_bytes)
    try:
        plan = make_plan(scenario.spec, scenario.sizes, options, scenario.profile)
    except MemoryCeilingTooSmall as error:
        return None, f"without any weights in slots it takes {format_bytes(error.smallest_bytes)}"
    got, asked = realised_policy(plan, scenario.spec).placement.wc, policy.placement.wc
    if got >= asked - _TOLERANCE:
        return plan, ""
    whole = _weight_bytes(scenario)
    return plan, (
        f"{format_bytes(asked * whole)} of weights are to be in DRAM, and there is room for"
        f" {format_bytes(got * whole)}"
    )


def _fits(policy: BatchPolicy, scenario: Scenario, ceiling_bytes: int | None = None) -> bool:
    return not _tried(policy, scenario, ceiling_bytes)[1]


def _needed_bytes(policy: BatchPolicy, scenario: Scenario) -> int:
    """A ceiling under which a policy fits, with a little to spare."""
    bare = _options(policy, scenario).having(memory=None, slot_memory=None)
    smallest = make_plan(scenario.spec, scenario.sizes, bare, scenario.profile)
    slots = round(policy.placement.wc * _weight_bytes(scenario))
    needed = smallest.smallest_bytes + max(slots - smallest.split["slots"], 0)
    for _ in range(_TRIES):
        if _fits(policy, scenario, needed):
            break
        # A prompt's ring and chunk grow with the room there is, and take a part of it.
        needed += max(slots // 32, MIB)
    return (needed + ADVICE_MARGIN_BYTES + MIB - 1) // MIB * MIB


def _would_fit(policy: BatchPolicy, scenario: Scenario) -> str:
    """Policies next to this one, and a ceiling, that would do."""
    near = [f"--policy {one}" for one in _fitting(policy, scenario)]
    near.append(f"--memory {_needed_bytes(policy, scenario) // MIB}MiB with it as it is")
    return f"What fits: {', or '.join(near)}"


def _fitting(policy: BatchPolicy, scenario: Scenario) -> Iterator[BatchPolicy]:
    """Less of the weights in DRAM, fewer rows, or fewer keys and values: each by itself."""
    place, block = policy.placement, policy.block
    percents = round(100 * place.wc)

    def weights(percent: int) -> BatchPolicy:
        share = percent / 100
        return BatchPolicy(block, dataclasses.replace(place, wc=share, wd=1 - share))

    def rows(count: int) -> BatchPolicy:
        if count % block.batch_rows == 0:
            return BatchPolicy(Block(block.batch_rows, count // block.batch_rows), place)
        return BatchPolicy(Block(count, 1), place)

    def kv(percent: int) -> BatchPolicy:
        share = percent / 100
        return BatchPolicy(block, dataclasses.replace(place, cc=share, cd=1 - share))

    choices: tuple[tuple[Callable[[int], BatchPolicy], int, int], ...] = (
        (weights, 0, percents - 1),
        (rows, 1, block.rows - 1),
        (kv, 0, round(100 * place.cc) - 1),
    )
    for made, least, most in choices:
        if most >= least and (found := _largest(made, least, most, scenario)) is not None:
            yield found


def _largest(
    made: Callable[[int], BatchPolicy], least: int, most: int, scenario: Scenario
) -> BatchPolicy | None:
    """The policy of the largest number that fits; None if none does."""
    count = most_that_holds(most - least + 1, lambda n: _fits(made(least + n - 1), scenario))
    return made(least + count - 1) if count else None
