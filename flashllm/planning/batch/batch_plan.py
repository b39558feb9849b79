"""The plan of a batch: a policy by hand or the best one, what it takes, and why not if it fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashllm.planning.batch.block_cost import BlockCost, CostedPolicy
from flashllm.planning.batch.placement import TIERS
from flashllm.planning.batch.policy import BatchPolicy
from flashllm.planning.batch.policy_search import (
    CostModel,
    Found,
    Shortage,
    largest_fitting,
    search,
    shortage,
)
from flashllm.units import format_bytes, format_number

TIER_LABELS = {"device": "the device", "dram": "DRAM", "flash": "flash"}
MEMORY_LABELS = {"device": "device memory", "dram": "DRAM", "flash": "flash"}


@dataclass(frozen=True, slots=True)
class WouldFit:
    """What would do instead of what was asked for."""

    policy: BatchPolicy | None = None
    """One that does on this machine."""
    needed_bytes: dict[str, float] = field(default_factory=dict)
    """Sizes of tiers that would be enough: all of these of a policy by hand, any one of them of a
    search."""
    seconds: float | None = None
    """The least latency."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What was planned for blocks of a model on a machine."""

    chosen: CostedPolicy | None
    """None if a search found nothing."""
    found: Found | None = None
    """None of a policy by hand."""
    reason: str = ""
    """Why it cannot be done; "" if it can."""
    would_fit: WouldFit | None = None

    @property
    def fits(self) -> bool:
        """Whether it can be done."""
        return not self.reason


def plan_policy(
    model: CostModel, policy: BatchPolicy, latency_seconds: float | None = None
) -> BatchPlan:
    """What a policy by hand takes; if it does not fit, why, and what would."""
    cost = model.cost(policy.block)
    chosen = CostedPolicy(policy, cost)
    if why := cost.refusal(policy.placement):
        return BatchPlan(chosen, reason=why)
    if excess := cost.excess_bytes(policy.placement):
        peaks = cost.peak_bytes(policy.placement)
        return BatchPlan(
            chosen,
            reason=_excess_words(cost, peaks, excess),
            would_fit=WouldFit(
                largest_fitting(model.cost, policy), {tier: peaks[tier] for tier in excess}
            ),
        )
    if latency_seconds is not None and chosen.seconds > latency_seconds:
        return BatchPlan(
            chosen,
            reason=f"a block takes {_seconds(chosen.seconds)}, more than the latency of"
            f" {_seconds(latency_seconds)}",
            would_fit=WouldFit(seconds=chosen.seconds),
        )
    return BatchPlan(chosen)


def plan_search(model: CostModel, latency_seconds: float | None = None) -> BatchPlan:
    """The best policy; if none fits, why, and what would."""
    found = search(model, latency_seconds)
    if found.best is not None:
        return BatchPlan(found.best, found)
    if found.pareto:
        assert latency_seconds is not None, "what fits is chosen where there is no limit"
        quickest = found.pareto[0]
        return BatchPlan(
            None,
            found,
            reason=f"no block is answered within {_seconds(latency_seconds)}: the quickest that"
            f" fits takes {_seconds(quickest.seconds)}",
            would_fit=WouldFit(quickest.policy, seconds=quickest.seconds),
        )
    lacks = shortage(model)
    return BatchPlan(None, found, _shortage_words(lacks), WouldFit(needed_bytes=lacks.needed_bytes))


def _excess_words(cost: BlockCost, peaks: dict[str, float], excess: dict[str, float]) -> str:
    words = [
        f"{TIER_LABELS[tier]} needs {format_bytes(peaks[tier])} and has"
        f" {format_bytes(cost.limit_bytes[tier])}"
        for tier in TIERS
        if tier in excess
    ]
    return "; ".join(words)


def _shortage_words(lacks: Shortage) -> str:
    if not lacks.needed_bytes:
        return (
            "not even one prompt at a time fits, whatever is placed where: all tiers together would"
            f" have to be {format_number(lacks.factor)} times as large"
        )
    enough = " or ".join(
        f"{format_bytes(nbytes)} of {MEMORY_LABELS[tier]}"
        for tier, nbytes in lacks.needed_bytes.items()
    )
    return (
        "not even one prompt at a time fits, whatever is placed where; with the rest as it is,"
        f" {enough} would be enough"
    )


def _seconds(seconds: float) -> str:
    return f"{format_number(seconds)} s"
