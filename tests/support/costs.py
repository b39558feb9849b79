"""Costs, plans and rates of round numbers, for tests of what is said of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from flashllm.planning.cost_model import ResidentBytes
from flashllm.planning.plan import Plan
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.spec import ModelSpec
from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import NO_COST, TokenCost
from flashllm.telemetry.device_rates import DeviceRates, TokenWork
from tests.support.specs import SPEC

MS = 1_000_000
PARTS_MS = {"io_exposed": 20, "ffn": 10, "attention": 5, "manage": 3, "head": 2}
SPLIT = {
    "interpreter": 100 << 20, "embeddings": 8 << 20, "attention": 16 << 20, "predictors": 4 << 20,
    "kv": 12 << 20, "prefill": 20 << 20, "reserve": 40 << 20, "slots": 200 << 20,
}  # fmt: skip
WORK = TokenWork(SPEC, ResidentBytes(attention=10_000_000, head=0, gate=0, predictors=0), None)
RATES = DeviceRates(3e9, 10e9, "the profile of a device of the tests, 2026-01-01", None, WORK)
UNKNOWN_RATES = DeviceRates()


def cost(**changes: Any) -> TokenCost:
    """40 ms, half of them waiting; 30 MB in 300 reads of 100 kB, for 12 ms six at once."""
    usual = dataclasses.replace(
        NO_COST,
        wall_ns=40 * MS,
        parts_ns={part: PARTS_MS.get(part, 0) * MS for part in PARTS},
        bytes_read=30_000_000,
        bytes_useful=29_000_000,
        reads=300,
        io_busy_ns=12 * MS,
        depth_ns=72 * MS,
        depth_max=32,
        size_histogram=(0,) * 16 + (300,),
        hits=900,
        misses=100,
        rss_bytes=310 << 20,
    )
    return dataclasses.replace(usual, **changes)


@dataclass(frozen=True)
class FakeToken:
    """As much of a token as has numbers."""

    text: str
    cost: TokenCost
    id: int = 0


def plan(select: str = "gate", spec: ModelSpec = SPEC, slots: int = 512) -> Plan:
    """A ceiling of 512 MiB, of which 400 are given out."""
    return Plan(
        ceiling_bytes=512 << 20,
        smallest_bytes=200 << 20,
        split=dict(SPLIT),
        window=5,
        slots_per_layer=(slots,) * spec.n_layers,
        slots_wanted=slots * spec.n_layers,
        io_threads=32,
        context=512,
        select=select,
        prefill=PrefillShape(64, 64),
    )
