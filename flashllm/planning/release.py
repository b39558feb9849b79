"""Fewer slots than were planned, for a model that is open where memory runs short. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from flashllm.planning.plan import Plan
from flashllm.planning.slot_allocation import least_slots
from flashllm.spec import ModelSpec


def slots_without(plan: Plan, spec: ModelSpec, stride: int, nbytes: int) -> list[int]:
    """Slots of each layer of a plan that does with `nbytes` less, or as little less as it can.

    Bundles take `stride` bytes each. The slots that a prompt borrows are kept, and the ring of a
    prompt stays as it is. Where bundles are pinned, whole blocks of them stay.
    """
    block = plan.prefill.bundles
    lent = plan.lent_blocks or (0,) * spec.bundled_layers
    least = [least_slots(spec, plan.select) + blocks * block for blocks in lent]
    if plan.device is not None:  # what is on the device is no memory of the process's
        there = plan.device.slot_layers
        least[:there] = plan.slots_per_layer[:there]
    unit = block if plan.select == "all" else 1
    return _shrunk(plan.slots_per_layer, least, -(-nbytes // stride), unit)


def _shrunk(slots: Sequence[int], least: Sequence[int], fewer: int, unit: int) -> list[int]:
    """At least `fewer` slots less in all, if `least` allows it: in proportion to what is above."""
    spare = sum(slots) - sum(least)
    share = min(fewer / spare, 1.0) if spare > 0 else 0.0
    if not share:
        return list(slots)
    return [
        max(int(have - share * (have - few)) // unit * unit, few)
        for have, few in zip(slots, least, strict=True)
    ]
