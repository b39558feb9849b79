"""What a block of prompts costs, as functions of where everything is placed.

A cost model makes a `BlockCost`; a policy's numbers and the search's linear programme are both read
off it, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashllm.planning.batch.placement import NOTHING, SHARES, TIERS, Affine, Placement
from flashllm.planning.batch.policy import BatchPolicy, Block

_NEAR = 1e-3
"""What is this near to the largest binds as well: where a linear programme ends, several do."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Prompts (prefill) or answers (decode) of a block: one layer's step, and how many there are.

    A step takes as long as the longest of its `lanes`, which overlap; the parts of one lane follow
    each other.
    """

    parts: Mapping[str, Affine]
    """Seconds of one layer's step, by what takes them."""
    lanes: Mapping[str, tuple[str, ...]]
    """Names of parts, by the lane in which they follow each other."""
    steps: int
    """How many steps of a layer there are."""
    beside_seconds: float = 0.0
    """Of the whole phase, besides all layers."""

    def bounds(self) -> dict[str, Affine]:
        """Seconds of each lane of a step."""
        return {
            lane: sum((self.parts[name] for name in names), NOTHING)
            for lane, names in self.lanes.items()
        }

    def seconds(self, placement: Placement) -> float:
        """Of the whole phase."""
        longest = max(bound.at(placement) for bound in self.bounds().values())
        return self.steps * longest + self.beside_seconds

    def breakdown(self, placement: Placement) -> dict[str, float]:
        """Seconds of each part of the whole phase, were nothing else done meanwhile."""
        return {name: self.steps * part.at(placement) for name, part in self.parts.items()}

    def binding(self, placement: Placement) -> str:
        """The lane that the phase waits for; all of them, if several take as long."""
        if not self.steps:
            return "nothing"
        seconds = {lane: bound.at(placement) for lane, bound in self.bounds().items()}
        longest = max(seconds.values())
        named = [lane for lane, one in seconds.items() if one >= (1 - _NEAR) * longest]
        return ", ".join(named)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of one tier at one moment; the largest need of a tier is its peak."""

    tier: str
    phase: str
    """prefill or decode."""
    bytes: Affine


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Times and memory of one block, whatever the placement."""

    block: Block
    new_tokens: int
    prefill: Phase
    decode: Phase
    needs: tuple[MemoryNeed, ...]
    limit_bytes: Mapping[str, float]
    """Of each tier."""
    barred: Mapping[str, str] = field(default_factory=dict)
    """Shares that must be 0, and why."""

    def seconds(self, placement: Placement) -> float:
        """Until the whole block is answered: its latency."""
        return self.prefill.seconds(placement) + self.decode.seconds(placement)

    def tokens_per_second(self, placement: Placement) -> float:
        """New tokens of all rows over that time, in which the prompts are included."""
        return self.block.rows * self.new_tokens / self.seconds(placement)

    def peak_bytes(self, placement: Placement, phase: str | None = None) -> dict[str, float]:
        """The most that each tier holds at once, in one phase or in both."""
        peaks = dict.fromkeys(TIERS, 0.0)
        for need in self.needs:
            if phase in (None, need.phase):
                peaks[need.tier] = max(peaks[need.tier], need.bytes.at(placement))
        return peaks

    def excess_bytes(self, placement: Placement) -> dict[str, float]:
        """By how much each tier is too small; only of those that are."""
        peaks = self.peak_bytes(placement)
        over = {tier: peaks[tier] - self.limit_bytes[tier] for tier in TIERS}
        return {tier: nbytes for tier, nbytes in over.items() if nbytes > 0}

    def refusal(self, placement: Placement) -> str:
        """Why this machine or runtime cannot place things so, whatever its memory; "" if it can."""
        values = dict(zip(SHARES, placement.values, strict=True))
        return next((why for share, why in self.barred.items() if values[share] > 0), "")

    def fits(self, placement: Placement) -> bool:
        """Whether every tier holds what it must."""
        return not self.refusal(placement) and not self.excess_bytes(placement)

    def binds(self, placement: Placement) -> dict[str, Any]:
        """What each phase waits for, and the tiers that are full or too small."""
        peaks = self.peak_bytes(placement)
        full = [t for t in TIERS if peaks[t] and peaks[t] >= (1 - _NEAR) * self.limit_bytes[t]]
        return {
            "prefill": self.prefill.binding(placement),
            "decode": self.decode.binding(placement),
            "memory": full,
        }


@dataclass(frozen=True, slots=True)
class CostedPolicy:
    """A policy with its costs."""

    policy: BatchPolicy
    cost: BlockCost

    @property
    def seconds(self) -> float:
        """The latency of its block."""
        return self.cost.seconds(self.policy.placement)

    @property
    def tokens_per_second(self) -> float:
        """Its throughput: rows x new tokens over the latency."""
        return self.cost.tokens_per_second(self.policy.placement)

    @property
    def fits(self) -> bool:
        """Whether it fits the machine."""
        return self.cost.fits(self.policy.placement)
