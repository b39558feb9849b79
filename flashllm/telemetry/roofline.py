"""The roofline of a token: the bytes that it moves divided by this machine's rates.

Reading and computing may overlap, so the larger of the two times is the bound; an engine that does
one after the other takes their sum. Pure; the caller brings the rates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashllm.spec import ModelSpec
from flashllm.telemetry.costs import ratio


@dataclass(frozen=True, slots=True)
class Bound:
    """One token's bytes, the rates for them, and the time that it took."""

    flash_bytes: float
    flash_bytes_per_second: float | None
    """None if it could not be measured; then there is no bound by flash."""
    dram_bytes: float
    dram_bytes_per_second: float
    time_ns: float

    @property
    def flash_ns(self) -> float | None:
        """Time that flash needs for its bytes."""
        if not self.flash_bytes:
            return 0.0
        if self.flash_bytes_per_second is None:
            return None
        return self.flash_bytes * 1e9 / self.flash_bytes_per_second

    @property
    def dram_ns(self) -> float:
        """Time that DRAM needs for its bytes."""
        return self.dram_bytes * 1e9 / self.dram_bytes_per_second

    @property
    def larger_ns(self) -> float:
        """The bound."""
        return max(self.flash_ns or 0.0, self.dram_ns)

    @property
    def sum_ns(self) -> float:
        """The bound of an engine in which nothing overlaps."""
        return (self.flash_ns or 0.0) + self.dram_ns

    @property
    def share(self) -> float:
        """The bound over the time: 1 is as fast as this machine can."""
        return ratio(self.larger_ns, self.time_ns)

    @property
    def binds(self) -> str:
        """Which of the two is the bound."""
        return "flash" if (self.flash_ns or 0.0) > self.dram_ns else "DRAM"

    def to_json(self) -> dict[str, Any]:
        """Plain values, the derived ones included."""
        return {
            **dataclasses.asdict(self),
            "flash_ns": self.flash_ns,
            "dram_ns": self.dram_ns,
            "larger_ns": self.larger_ns,
            "sum_ns": self.sum_ns,
            "share": self.share,
            "sum_share": ratio(self.sum_ns, self.time_ns),
            "binds": self.binds,
        }


def active_bundles(
    spec: ModelSpec, select: str, activity: Mapping[str, Any] | None
) -> float | None:
    """Neurons of a token that are not zero; None if none of the computed ones is zero.

    Without a recording it is 0: a bound may be too small, never too large.
    """
    if not spec.sparse or select == "gate":
        return None
    sparsity = (activity or {}).get("sparsity")
    share = 1.0 - sparsity if isinstance(sparsity, float) else 0.0
    return share * spec.bundled_layers * spec.bundles_per_layer
