"""Rates of a device and machine, and what a token of an open model needs of them.

Pure: the rates come from a profile (`flashllm bench io`). Unknown values are None, never made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashllm.hardware.curves import Curve
from flashllm.planning.cost_model import ResidentBytes, dram_bytes_a_token
from flashllm.telemetry.costs import ratio
from flashllm.telemetry.roofline import Bound, active_bundles

if TYPE_CHECKING:
    from flashllm.hardware.machine_profile import Profile
    from flashllm.planning.model_info import ModelInfo
    from flashllm.planning.plan import Plan
    from flashllm.spec import ModelSpec

UNKNOWN = "unknown: run `flashllm bench io --quick`"
PROFILE, QUICK_PROFILE = "profile", "quick profile"
PAGE_CACHE = "unknown: reads go through the page cache, and the profile's did not"
DRAM_UNKNOWN = "unknown: the profile knows flash alone; run `flashllm bench io` with the machine"
_SIZES = tuple(512 << power for power in range(14))  # 512 bytes to 4 MiB
_EVERYTHING = ("all", "oracle")
"""Selectors that read every neuron; with the oracle, only neurons that it then uses are counted."""


@dataclass(frozen=True, slots=True)
class MeasuredTraffic:
    """The bytes that one or several tokens moved in `wall_ns`."""

    wall_ns: float
    bytes_read: float
    reads: float
    hits: float
    misses: float
    context_tokens: float
    """Mean over the tokens."""
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class TokenWork:
    """What every token of an open model moves through DRAM, besides bundles in slots."""

    spec: ModelSpec
    resident: ResidentBytes
    active: float | None
    """Neurons of a token that are not zero, if fewer than are computed."""

    def dram_bytes(self, plan: Plan, hits: float, misses: float, context_tokens: float) -> float:
        """Bytes that a token moves that found `hits` neurons in DRAM and read `misses`."""
        used, loaded = hits + misses, misses
        if plan.select in _EVERYTHING:
            used = float(self.spec.bundled_layers * self.spec.bundles_per_layer)
            loaded = used * (1 - self.pinned_share(plan))
        moved = dram_bytes_a_token(
            self.spec,
            self.resident,
            used,
            loaded,
            self.spec.bundle_bytes,
            context_tokens,
            bundles_active=self.active,
            kv_dtype=plan.kv_dtype,
        )
        return moved.total

    def pinned_share(self, plan: Plan) -> float:
        """Share of pinned neurons, where each token needs all; 0 for the oracle."""
        pinned = sum(plan.slots_per_layer) if plan.select == "all" else 0
        return pinned / (self.spec.bundled_layers * self.spec.bundles_per_layer)


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Measured rates of this device and machine; None if unknown."""

    flash_bytes_per_second: float | None = None
    """For many reads of a neuron's size, by as many threads as the plan has."""
    dram_bytes_per_second: float | None = None
    origin: str = UNKNOWN
    """Where the rates come from, or why they are unknown."""
    flash: Curve | None = None
    """Flash rates for reads of any size."""
    work: TokenWork | None = None
    profile_name: str = PROFILE
    """How displays call what the rates come from: a quick profile is marked everywhere."""

    @classmethod
    def of(cls, profile: Profile | None, info: ModelInfo, plan: Plan, direct: bool) -> DeviceRates:
        """The rates in a profile of the model's device, with direct reads or not."""
        work = TokenWork(
            info.spec,
            ResidentBytes.of(info.spec, plan.split["predictors"]),
            active_bundles(info.spec, plan.select, info.activity),
        )
        if profile is None:
            return cls(work=work)
        flash = flash_rate = dram_rate = None
        if profile.rates is not None and (by_threads := profile.rates.dram_bytes_per_second):
            dram_rate = by_threads[max(by_threads)]
        name = QUICK_PROFILE if profile.quick else PROFILE
        article = "a" if profile.quick else "the"
        origin = f"{article} {name} of {profile.device.name}, {profile.date[:10]}"
        if direct == profile.direct:
            seconds = [size / profile.throughput(size, plan.io_threads) for size in _SIZES]
            flash = Curve(_SIZES, tuple(seconds), None)
            flash_rate = flash.throughput(info.bundle_stride_bytes)
        else:
            origin = PAGE_CACHE
        return cls(flash_rate, dram_rate, origin, flash, work, name)

    @property
    def is_quick(self) -> bool:
        """Whether they are by a quick profile."""
        return self.profile_name == QUICK_PROFILE

    def flash_at(self, read_bytes: float) -> float | None:
        """Bytes per second of reads of that size."""
        if self.flash is None or read_bytes <= 0:
            return self.flash_bytes_per_second
        return self.flash.throughput(read_bytes)

    def bound(self, plan: Plan, moved: MeasuredTraffic) -> Bound | None:
        """The least time for one token's bytes; None if a needed rate is unknown."""
        flash, dram = (
            self.flash_at(ratio(moved.bytes_read, moved.reads)),
            self.dram_bytes_per_second,
        )
        if self.work is None or not dram or (moved.bytes_read and flash is None):
            return None
        n = moved.tokens
        dram_bytes = self.work.dram_bytes(
            plan, moved.hits / n, moved.misses / n, moved.context_tokens
        )
        return Bound(moved.bytes_read / n, flash, dram_bytes, dram, moved.wall_ns / n)

    def hit_rate(self, plan: Plan, counted: float) -> float:
        """The counted hit rate; where every neuron is read, the share that is pinned."""
        if plan.select in _EVERYTHING and self.work is not None:
            return self.work.pinned_share(plan)
        return counted
