"""The report of `flashllm plan --batch`: a table and sentences, or one JSON object."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashllm.cli.shared.output import table
from flashllm.planning.batch.placement import TIERS
from flashllm.planning.batch.store_cost import ASSUMED, StoreModel
from flashllm.text_table import columns
from flashllm.units import format_bytes, format_count, format_number

if TYPE_CHECKING:
    from flashllm.planning.batch.batch_plan import BatchPlan, WouldFit
    from flashllm.planning.batch.block_cost import BlockCost, CostedPolicy
    from flashllm.planning.batch.placement import Placement
    from flashllm.planning.batch.tiered_cost import TieredModel

WIDTH = 79
TIER_NAMES = {"device": "device", "dram": "DRAM", "flash": "flash"}
PHASES = (("prefill", "prompts"), ("decode", "answers"))


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What is reported of a plan."""

    model_name: str
    machine_name: str
    model: TieredModel | StoreModel
    plan: BatchPlan
    other: CostedPolicy | None
    """What attention at the other place would give: on the device, or by the CPU."""
    lists_pareto: bool

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        model, made, chosen = self.model, self.plan, self.plan.chosen
        found = made.found
        return {
            "model": self.model_name,
            "machine": self.machine_name,
            "cost_model": "measured" if isinstance(model, StoreModel) else model.cost_model,
            "prompt_tokens": model.work.prompt_tokens,
            "new_tokens": model.work.new_tokens,
            "compress": model.compress,
            "delegated": None if isinstance(model, StoreModel) else model.delegated,
            "fits": made.fits,
            "peak_bytes": None if chosen is None else _peaks(chosen),
            "limit_bytes": _whole(self._limits),
            "tokens_per_second": None if chosen is None else chosen.tokens_per_second,
            "latency_s": None if chosen is None else chosen.seconds,
            "binds": None if chosen is None else chosen.cost.binds(chosen.policy.placement),
            "policy": None if chosen is None else chosen.policy.to_json(),
            "phases": None if chosen is None else _phases(chosen),
            "blocks_tried": None if found is None else found.blocks_tried,
            "pareto": None if found is None else [_pareto_row(one) for one in found.pareto],
            "other_delegation": None if (other := self.other) is None else _pareto_row(other),
            "reason": made.reason or None,
            "would_fit": None if made.would_fit is None else _would_fit(made.would_fit),
            "assumed": list(ASSUMED) if isinstance(model, StoreModel) else [],
        }

    def text(self) -> str:
        """A table, and sentences."""
        made, chosen = self.plan, self.plan.chosen
        work = self.model.work
        bits = ", 4 bits" if self.model.compress else ""
        rows: list[tuple[str, Any]] = [
            ("model", f"{self.model_name}{bits}"),
            ("rows", f"{work.prompt_tokens} tokens and {work.new_tokens} new ones each"),
            ("machine", f"{self.machine_name}: {_sizes(self._limits)}"),
        ]
        if chosen is not None:
            rows += self._policy_rows(chosen)
        parts = [table(rows)]
        if chosen is not None:
            parts.append(_breakdown(chosen.cost, chosen.policy.placement))
        if self.lists_pareto and made.found is not None and made.found.pareto:
            parts.append(_pareto_table(made.found.pareto))
        parts.append("".join(f"{textwrap.fill(one, WIDTH)}\n" for one in self._sentences()))
        return "\n".join(parts)

    @property
    def _limits(self) -> dict[str, float]:
        if isinstance(self.model, StoreModel):
            return {"device": 0.0, "dram": self.model.dram_bytes, "flash": self.model.flash_bytes}
        return self.model.machine.limit_bytes

    def _policy_rows(self, chosen: CostedPolicy) -> list[tuple[str, Any]]:
        policy, cost = chosen.policy, chosen.cost
        place, block, binds = policy.placement, policy.block, cost.binds(policy.placement)
        kinds = (
            ("weights", place.wg, place.wc, place.wd),
            ("keys and values", place.cg, place.cc, place.cd),
            ("activations", place.hg, place.hc, place.hd),
        )
        return [
            ("policy", str(policy)),
            ("  rows", f"{block.rows} a block: {block.batches} batches of {block.batch_rows}"),
            *((f"  {kind}", _split(*split)) for kind, *split in kinds),
            ("peak", _sizes(cost.peak_bytes(place))),
            ("throughput", f"{format_number(chosen.tokens_per_second)} new tokens a second"),
            ("latency", f"{format_number(chosen.seconds)} s a block"),
            ("prompts wait for", binds["prefill"]),
            ("answers wait for", binds["decode"]),
            ("full", ", ".join(TIER_NAMES[tier] for tier in binds["memory"]) or "no tier"),
        ]

    def _sentences(self) -> list[str]:
        made = self.plan
        sentences = ["It fits." if made.fits else f"It does not fit: {made.reason}."]
        if (would := made.would_fit) is not None and would.policy is not None:
            sentences.append(f"What would: --policy {would.policy}.")
        elif not made.fits and made.found is None:
            sentences.append(
                "No block with these shares does; without --policy the best one is searched for."
            )
        if made.found is not None and made.chosen is not None:
            sentences.append(
                f"The best of {format_count(made.found.blocks_tried)} sizes of block, each with its"
                " best placement."
            )
        if (other := self.other) is not None and made.chosen is not None:
            where = "on the device" if getattr(self.model, "delegated", False) else "by the CPU"
            which = "the best" if other.policy != made.chosen.policy else "the same"
            sentences.append(
                f"If keys and values outside the device were attended to {where}, {which} would be"
                f" {format_number(other.tokens_per_second)} tokens a second, {other.policy}."
            )
        if isinstance(self.model, StoreModel):
            sentences += [f"Assumed: {assumed}." for assumed in ASSUMED]
        return sentences


def _whole(sizes: dict[str, float]) -> dict[str, int]:
    return {tier: round(nbytes) for tier, nbytes in sizes.items()}


def _peaks(chosen: CostedPolicy) -> dict[str, int]:
    return _whole(chosen.cost.peak_bytes(chosen.policy.placement))


def _phases(chosen: CostedPolicy) -> dict[str, Any]:
    cost, placement = chosen.cost, chosen.policy.placement
    return {
        name: {
            "seconds": phase.seconds(placement),
            "peak_bytes": _whole(cost.peak_bytes(placement, name)),
            "parts_seconds": phase.breakdown(placement),
        }
        for name, phase in (("prefill", cost.prefill), ("decode", cost.decode))
    }


def _pareto_row(one: CostedPolicy) -> dict[str, Any]:
    return {
        "latency_s": one.seconds,
        "tokens_per_second": one.tokens_per_second,
        "rows": one.policy.block.rows,
        "policy": str(one.policy),
    }


def _would_fit(would: WouldFit) -> dict[str, Any]:
    return {
        "policy": None if would.policy is None else str(would.policy),
        "bytes": _whole(would.needed_bytes),
        "latency_s": would.seconds,
    }


def _sizes(sizes: dict[str, float]) -> str:
    shown = [f"{TIER_NAMES[tier]} {format_bytes(sizes[tier])}" for tier in TIERS if sizes[tier]]
    return ", ".join(shown)


def _split(device: float, dram: float, flash: float) -> str:
    shares = {"device": device, "DRAM": dram, "flash": flash}
    return ", ".join(f"{share:.4g} % {t}" for t, share in _percents(shares) if share)


def _percents(shares: dict[str, float]) -> list[tuple[str, float]]:
    return [(tier, round(100 * share, 4)) for tier, share in shares.items()]


def _breakdown(cost: BlockCost, placement: Placement) -> str:
    """Seconds of each part, were nothing else done meanwhile."""
    phases = {"prefill": cost.prefill, "decode": cost.decode}
    parts = {name: phase.breakdown(placement) for name, phase in phases.items()}
    names = dict.fromkeys(name for found in parts.values() for name in found)
    rows = [["seconds of a block", *(label for _, label in PHASES)]]
    for name in names:
        seconds = [parts[phase].get(name, 0.0) for phase, _ in PHASES]
        if any(seconds):
            rows.append([f"  {name}", *(format_number(one) if one else "" for one in seconds)])
    totals = [phases[phase].seconds(placement) for phase, _ in PHASES]
    rows.append(["  at once", *(format_number(one) for one in totals)])
    return columns(rows)


def _pareto_table(pareto: tuple[CostedPolicy, ...]) -> str:
    head = ["latency, s", "tokens a second", "rows", "  --policy"]
    rows = [
        [
            format_number(one.seconds),
            format_number(one.tokens_per_second),
            format_count(one.policy.block.rows),
            f"  {one.policy}",
        ]
        for one in pareto
    ]
    return columns([head, *rows], left=0)
