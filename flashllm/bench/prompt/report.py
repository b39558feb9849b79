"""What prompts took, and the bound: the longest of what disk, memory and processor must do.

The disk reads each feed-forward weight that is needed and not in memory once, in order. Memory
gives what is needed once; experts that no token chose are not. The processor multiplies each weight
with each token, an expert with those that chose it; of models whose neurons fall silent, the down
rows of silent ones are left out, or all their rows where prompts go through selected neurons. What
comes behind keys and values of the last layer is of the last token alone. Beside it is the bound of
a program that leaves nothing out, all weights with all tokens. Pure; the caller brings the rates.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flashllm.bench.prompt.runs import PromptRun
from flashllm.bench.sample_statistics import spread
from flashllm.planning.cost_model import ResidentBytes
from flashllm.spec import ModelSpec
from flashllm.telemetry.costs import ratio
from flashllm.telemetry.roofline import active_bundles


@dataclass(frozen=True, slots=True)
class PromptRates:
    """What this machine gives, measured in the same run."""

    flash_bytes_per_second: float | None
    """Of large reads; None if it could not be measured."""
    dram_bytes_per_second: float
    resident_products_per_second: float
    """Encoded bytes × tokens that the processor multiplies, of attention and gates."""
    bundle_products_per_second: float
    """Likewise of bundles."""
    own_products_per_second: float | None = None
    """Likewise of rows that each token has of its own; None where all tokens go through all."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PromptWeights:
    """Bytes of weights that a prompt needs."""

    resident_bytes: float
    """Attention and gates."""
    bundle_bytes: float
    """Feed-forward weights, of which silent neurons leave out the down rows."""
    multiplied_share: float = 1.0
    """How much of them each token is multiplied with: of experts those that it chose, of a prompt
    through selected neurons those that are not zero."""
    last_resident_bytes: float = 0.0
    """Of the resident ones, what only the last token of a prompt is multiplied with."""
    last_bundle_bytes: float = 0.0
    """The same of the feed-forward weights."""
    silent_bytes: float = 0.0
    """Down rows of silent neurons, which `bundle_bytes` leave out."""

    @classmethod
    def of(
        cls, spec: ModelSpec, activity: Mapping[str, Any] | None, *, selected: bool = False
    ) -> PromptWeights:
        """Those of a model, with the share of active neurons that was recorded of it.

        `selected` is a prompt through selected neurons: each token needs all rows of its active
        ones, and no other. What finds them does not count.
        """
        resident = ResidentBytes.of(spec)
        whole = spec.bundled_layers * spec.bundles_per_layer
        active = None if spec.experts else active_bundles(spec, "all", activity)
        rows = spec.rows_per_neuron
        used = (rows - 1) * whole + (whole if active is None else active)
        share = spec.multiplied_share
        if selected and active is not None:
            share = active * rows / used
        bundled = used * spec.bundle_bytes / rows
        last = ResidentBytes.behind_last(spec, queries=True)
        return cls(
            resident.attention + resident.gate, bundled, share,
            last.attention + last.gate, bundled / spec.bundled_layers,
            silent_bytes=(whole * rows - used) * spec.bundle_bytes / rows,
        )  # fmt: skip

    def multiplied_bytes(self, tokens: int) -> tuple[float, float]:
        """Bytes × tokens of resident weights and of bundles, if each token needed all of these."""
        return (
            self.resident_bytes * tokens - self.last_resident_bytes * (tokens - 1),
            self.bundle_bytes * tokens - self.last_bundle_bytes * (tokens - 1),
        )

    def with_silent(self) -> PromptWeights:
        """The same where nothing is left out: all weights, with all tokens."""
        whole = self.bundle_bytes + self.silent_bytes
        last = self.last_bundle_bytes * whole / self.bundle_bytes
        return replace(
            self, bundle_bytes=whole, multiplied_share=1.0, last_bundle_bytes=last, silent_bytes=0.0
        )


def own_products_ns(weights: PromptWeights, rates: PromptRates, tokens: int) -> float | None:
    """What products take by the kernel that has less work with bundles, in ns.

    Tiles multiply all tokens with all rows, another one each token with rows of its own, of which
    it does fewer a second. None where tokens have none.
    """
    if rates.own_products_per_second is None:
        return None
    resident, bundles = weights.multiplied_bytes(tokens)
    in_tiles = bundles / rates.bundle_products_per_second
    own = bundles * weights.multiplied_share / rates.own_products_per_second
    return 1e9 * (resident / rates.resident_products_per_second + min(in_tiles, own))


def bound_ns(
    weights: PromptWeights,
    rates: PromptRates,
    tokens: int,
    bytes_missing: int,
    bytes_needed: float,
) -> dict[str, float | None]:
    """Times by what they are spent on, in ns; that of flash is None where it is unknown.

    `bytes_needed` are those of bundles, of which `bytes_missing` have to be read.
    """
    flash = rates.flash_bytes_per_second
    resident, bundles = weights.multiplied_bytes(tokens)
    products = (
        resident / rates.resident_products_per_second
        + bundles * weights.multiplied_share / rates.bundle_products_per_second
    )
    moved_bytes = weights.resident_bytes + min(weights.bundle_bytes, bytes_needed)
    return {
        "flash": None if flash is None and bytes_missing else 1e9 * bytes_missing / (flash or 1.0),
        "DRAM": 1e9 * moved_bytes / rates.dram_bytes_per_second,
        "products": 1e9 * products,
    }


def report_rows(
    runs: Sequence[PromptRun], weights: PromptWeights, rates: PromptRates
) -> list[dict[str, Any]]:
    """A row for each length and kind, in order: medians over the rounds, and the bound."""
    kinds = list(dict.fromkeys((run.tokens, run.kind) for run in runs))
    rows = []
    for tokens, kind in sorted(kinds):
        mine = [run for run in runs if (run.tokens, run.kind) == (tokens, kind)]
        first_token_ns = [float(run.first_token_ns) for run in mine]
        missing = round(statistics.median(run.bytes_missing for run in mine))
        needed = statistics.median(run.bytes_needed for run in mine)
        parts = bound_ns(weights, rates, tokens, missing, needed)
        known = {name: ns for name, ns in parts.items() if ns is not None}
        binds = max(known, key=lambda name: known[name])
        median_ns = statistics.median(first_token_ns)
        own_ns = own_products_ns(weights, rates, tokens)
        others_ns = max(ns for name, ns in known.items() if name != "products")
        by_kernels_ns = None if own_ns is None else max(own_ns, others_ns)
        all_ns = None
        if weights.silent_bytes:
            whole = bound_ns(weights.with_silent(), rates, tokens, missing, needed)
            all_ns = max(ns for ns in whole.values() if ns is not None)
        rows.append(
            {
                "tokens": tokens,
                "kind": kind,
                "first_token_ns": spread(first_token_ns),
                "tokens_per_second": ratio(tokens * 1e9, median_ns),
                "bytes_read": round(statistics.median(run.bytes_read for run in mine)),
                "bytes_needed": round(needed),
                "bytes_missing": missing,
                "flash_ns": parts["flash"],
                "dram_ns": parts["DRAM"],
                "products_ns": parts["products"],
                "bound_ns": known[binds],
                "binds": binds,
                "bound_share": ratio(known[binds], median_ns),
                "own_products_ns": own_ns,
                "own_share": None if by_kernels_ns is None else ratio(by_kernels_ns, median_ns),
                "all_weights_ns": all_ns,
                "all_weights_share": None if all_ns is None else ratio(all_ns, median_ns),
            }
        )
    return rows
