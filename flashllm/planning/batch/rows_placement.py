"""Where a block of rows has keys and values, and how large chunks its prompts get.

Rows whose keys and values have no room under the ceiling have some of them on flash. Pure
arithmetic: every placement is planned as it would be run, and the one that reads the least is
taken. Source: FlexGen (arXiv 2303.06865), section 4.3, whose linear programme trades the same
things against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.kv_cache.layout import kv_bytes
from flashllm.options import ModelOptions
from flashllm.planning.advisor import Scenario
from flashllm.planning.asked_options import context_of, encoding_of
from flashllm.planning.batch.policy import Workload
from flashllm.planning.plan import ADVICE_MARGIN_BYTES, Plan, make_plan
from flashllm.planning.prefill_shape import (
    LARGEST_CHUNK,
    LARGEST_CHUNK_OF_ROWS,
    PrefillShape,
)
from flashllm.planning.shape_choice import ShapeChoice
from flashllm.planning.slot_allocation import STEP_RING
from flashllm.units import MIB

_SHARES = 32
"""Keys and values in DRAM are tried in steps of this part of all, or of the ceiling if it is
less."""
_PAGE_COST, _FLASH_COST = 0.5, 1.5
"""What keys and values in pages cost more than in one piece, and pages on flash besides, in bytes
of weights for each of theirs. Measured (docs/log/2026-11-28-rows-with-pages.md): attention of 64
rows in pages, and reads of 40 KB here and there."""
_SHORT_COST = 0.5
"""The same of a byte of a layer that cannot be read while attention is computed, since the ring is
full (docs/log/2026-11-28-rings-of-all-slots.md)."""


def placed_rows(
    scenario: Scenario, rows: int, work: Workload, *, on_flash: bool = True
) -> ModelOptions | None:
    """The scenario's options for so many rows, placed so that `work` reads the least.

    None where they fit nowhere, or not without keys and values `on_flash` where these may not be.
    What the options say is left as it is, and keys and values stay in DRAM where that leaves room
    for the ring. Where a step of the rows does not read whole layers, slots decide what is read: as
    many keys and values as have room are in DRAM then.
    """
    scenario = scenario.having(contexts=rows)
    found = [*_planned(scenario, _chunks(scenario.options))]
    if on_flash and not any(_short_bytes(scenario, plan) == 0 for _, plan in found):
        found += _planned(scenario, _on_flash(scenario))
    if not found:
        return None
    options, plan = found[0]
    if _step_share(scenario, plan) is None:
        return options
    return min(found, key=lambda one: _cost_bytes(scenario, one[1], work))[0]


def _planned(
    scenario: Scenario, candidates: Iterable[ModelOptions]
) -> Iterator[tuple[ModelOptions, Plan]]:
    """Those that fit with a little to spare, since the process may have grown, and their plans."""
    for options in candidates:
        assert options.memory is not None
        less = options.having(memory=options.memory - ADVICE_MARGIN_BYTES)
        try:
            plan = make_plan(scenario.spec, scenario.sizes, less, scenario.profile)
        except (MemoryCeilingTooSmall, UsageError):
            continue
        yield options, plan


def _chunks(options: ModelOptions) -> Iterator[ModelOptions]:
    """The usual chunk, and larger ones, unless one was asked for."""
    yield options
    tokens = LARGEST_CHUNK
    while options.chunk_tokens is None and 2 * tokens <= LARGEST_CHUNK_OF_ROWS:
        tokens *= 2
        yield options.having(chunk_tokens=tokens)


def _on_flash(scenario: Scenario) -> Iterator[ModelOptions]:
    """With a part of keys and values in DRAM, the most first; none where how many was said."""
    options, spec = scenario.options, scenario.spec
    if options.kv_memory is not None or options.kv_selection.lossy or options.device is not None:
        return
    whole = options.contexts * kv_bytes(spec, context_of(spec, options), encoding_of(options))
    assert options.memory is not None
    most = min(whole, options.memory)
    for shares in range(_SHARES - 1, 0, -1):
        part = shares * most // _SHARES // MIB * MIB
        if part:
            yield from _chunks(options.having(kv_memory=part))


def _step_share(scenario: Scenario, plan: Plan) -> float | None:
    """How much of the layers a step reads; None where slots decide that."""
    shapes = ShapeChoice(scenario.spec, scenario.sizes.stride, scenario.options)
    return shapes.step_share(plan.union_tokens)


def _cost_bytes(scenario: Scenario, plan: Plan, work: Workload) -> float:
    """What prompts and answers of all rows read, in bytes of weights."""
    spec = scenario.spec
    weights = spec.bundled_layers * spec.bundles_per_layer * scenario.sizes.stride
    missing = max(weights - plan.split["slots"], 0)
    passes = math.ceil(plan.contexts * work.prompt_tokens / plan.prefill.tokens)
    step = (_step_share(scenario, plan) or 1.0) * missing
    step += _SHORT_COST * _short_bytes(scenario, plan) + _pages_cost(plan, work)
    return passes * (missing + plan.lent_activation_bytes) + work.new_tokens * step


def _short_bytes(scenario: Scenario, plan: Plan) -> int:
    """Of all layers, what the ring has no room for while attention is computed."""
    if not plan.reads_layers_whole:
        return 0
    spec, stride = scenario.spec, scenario.sizes.stride
    full = STEP_RING.most_blocks * PrefillShape.of(spec, stride).bundles
    wanted = min(full, spec.bundles_per_layer)
    ring = plan.prefill_blocks * plan.prefill.bundles
    return spec.bundled_layers * max(wanted - ring, 0) * stride


def _pages_cost(plan: Plan, work: Workload) -> float:
    """What keys and values in pages cost in a step, in the mean of an answer."""
    if plan.kv_pages is None:
        return 0.0
    whole, memory = plan.kv_pages.flash_bytes, plan.kv_pages.memory_bytes
    ends = (work.prompt_tokens, work.prompt_tokens + work.new_tokens)
    first, last = (whole * min(tokens / plan.context, 1.0) for tokens in ends)
    # They grow evenly, and what is beyond the memory for them is on flash.
    on_flash = max(first - memory, 0.0)
    if last > first:
        beyond = max(last - memory, 0.0) ** 2 - on_flash**2
        on_flash = beyond / (2 * (last - first))
    return _PAGE_COST * (first + last) / 2 + _FLASH_COST * on_flash
