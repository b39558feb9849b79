"""The policy of a block: searched for by the cost model, then tried in short runs.

What the model of a machine does not know is how many rows at once pay: half as many and twice as
many as the search says are tried as well, each opened anew with a placement of its own. What does
not fit under the ceiling is backed off from. No answer depends on what is found. Source: FlexGen
(arXiv 2303.06865), section 4.3, whose policies are adjusted by hand where they do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from flashllm.batch.block_search import GAIN_MIN, Trial, tokens_per_second
from flashllm.errors import FlashllmError, MemoryCeilingTooSmall, OutOfMemory
from flashllm.planning.asked_options import context_of
from flashllm.planning.batch.applied_policy import ROWS_MAX, apply_policy
from flashllm.planning.batch.policy import BatchPolicy, Block, Workload
from flashllm.planning.batch.policy_search import best_placement, search
from flashllm.planning.batch.store_cost import StoreModel

if TYPE_CHECKING:
    from flashllm.engine.local import Model
    from flashllm.planning.advisor import Scenario

FACTORS = (1.0, 2.0, 0.5, 0.25)
"""Of the rows that the search found, in the order in which they are tried."""
_SHRINK = 0.9
"""Shares that do not fit are made smaller by so much, since the runtime's own plan decides."""
_SHRINKS = 30

OpenPolicy = Callable[[BatchPolicy], "AbstractContextManager[Model]"]
"""Opens the model by a policy."""


def near_policies(
    scenario: Scenario, work: Workload, rows_most: int, flash_bytes: float
) -> list[BatchPolicy]:
    """The policy that a search finds, and those of more and of fewer rows, each as it fits.

    `flash_bytes` of the disk are free for keys and values.
    `ProfileError` without the machine's rates, `UsageError` without scipy.
    """
    memory = scenario.options.memory
    assert memory is not None
    context = context_of(scenario.spec, scenario.options)
    work = replace(work, prompt_tokens=min(work.prompt_tokens, context))
    model = StoreModel(scenario, work, float(memory), flash_bytes, context_tokens=context)
    best = search(model).best
    rows = 1 if best is None else best.policy.block.rows
    counts: dict[int, None] = {}
    for factor in FACTORS:
        counts[max(min(round(rows * factor), rows_most, ROWS_MAX), 1)] = None
    counts[1] = None
    found = (_fitted(model, scenario, count) for count in counts)
    return [policy for policy in found if policy is not None]


def find_policy(
    open_policy: OpenPolicy,
    candidates: Sequence[BatchPolicy],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    is_stopped: Callable[[], bool],
    on_trial: Callable[[BatchPolicy, Trial], None],
) -> BatchPolicy:
    """The fastest of the candidates, the first of those that are nearly as fast.

    Errors: those of the last candidate, if none fits.
    """
    best: tuple[BatchPolicy, float] | None = None
    problem: FlashllmError | None = None
    for policy in candidates:
        if best is not None and is_stopped():
            break
        rows = policy.block.rows
        try:
            with open_policy(policy) as model:
                trial = Trial(rows, tokens_per_second(model, prompts or [[0]], new_tokens, rows))
        except (MemoryCeilingTooSmall, OutOfMemory) as error:
            problem = error
            on_trial(policy, Trial(rows, 0.0, str(error).splitlines()[0]))
            continue
        on_trial(policy, trial)
        if best is None or trial.tokens_per_second > GAIN_MIN * best[1]:
            best = policy, trial.tokens_per_second
    if best is None:
        assert problem is not None, "a candidate was tried"
        raise problem
    return best[0]


def _fitted(model: StoreModel, scenario: Scenario, rows: int) -> BatchPolicy | None:
    """The best placement of so many rows that the runtime's own plan has room for."""
    cost = model.cost(Block(rows, 1))
    placement = best_placement(cost)
    if placement is None:
        return None
    policy = BatchPolicy(cost.block, placement)
    for _ in range(_SHRINKS):
        try:
            apply_policy(policy, scenario)
        except MemoryCeilingTooSmall:
            place = policy.placement
            weights = place.wc * _SHRINK if place.wc > 1 - _SHRINK else 0.0
            kv = place.cc if weights else place.cc * _SHRINK
            place = replace(place, wc=weights, wd=1 - weights, cc=kv, cd=1 - kv)
            policy = replace(policy, placement=place)
        else:
            return policy
    return None
