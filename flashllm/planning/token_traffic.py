"""What a decoded token uses, and what of it is read from flash and when. Pure.

The plan's `overlap` says which reads begin before a layer's turn.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

from flashllm.planning.activation_stats import Activity, FirstTokens
from flashllm.planning.cost_model import Encodings
from flashllm.planning.plan import Plan
from flashllm.planning.ways_to_read import MAX_READ_BYTES
from flashllm.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class PrefetchAccuracy:
    """How good speculative prefetches are; assumed, since no recording counts them."""

    recall: float = 0.95
    """Share of the loaded bundles that were prefetched."""
    precision: float = 0.95
    """Share of the prefetched bundles that were needed."""


@dataclass(frozen=True, slots=True)
class TokenTraffic:
    """What one decoded token uses, in all layers, and what of it is read from flash."""

    used: float
    """Bundles that are computed with."""
    active: float
    """Bundles used whose output is not zero."""
    loaded: float
    reads: float
    bytes_read: float
    """Gaps and padding included."""
    extra_rounds: float
    """Rounds beyond the first, in layers whose slots do not hold what one token uses."""
    wasted: float = 0.0
    """Prefetched bundles that were not needed."""

    @property
    def hit_rate(self) -> float:
        """Share of the bundles used that are in memory already."""
        return 1 - self.loaded / self.used if self.used else 1.0


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """The facts that an estimate needs: shape, bytes of a bundle on flash, what tokens use."""

    spec: ModelSpec
    stride: int
    predictors: int
    activity: Activity | None
    """None where every neuron is used."""
    predictor_dtype: str = "f16"
    prefetch: PrefetchAccuracy = PrefetchAccuracy()

    @property
    def encodings(self) -> Encodings:
        """How its weights are encoded."""
        return Encodings.of(self.spec, self.predictor_dtype)


def begins_early(plan: Plan) -> bool:
    """Whether reads may begin before the layer's turn."""
    return plan.overlap in ("attention", "layer") and plan.select not in ("all", "router")


def prefetches(spec: ModelSpec, plan: Plan) -> bool:
    """Whether prefetches are speculative: by predictors, in a block whose input is not known."""
    return begins_early(plan) and plan.select == "predicted" and spec.block == "sequential"


class Reads(NamedTuple):
    """Reads that are issued together."""

    reads: float = 0.0
    nbytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerReads:
    """A layer's traffic, and its reads by when they begin."""

    traffic: TokenTraffic
    early: Reads
    """Begun before the layer's turn: prefetched, or since the input was known."""
    late: Reads
    """Begun when the active set is known."""


def layer_reads(
    model: PlannedModel, plan: Plan, layer: int, first: FirstTokens | None = None
) -> LayerReads:
    """What a layer uses and loads, with reads merged as they are issued.

    With full slots, or `first`: on average of these tokens, which find them empty.
    """
    traffic, n_bundles = _layer_traffic(model, plan, layer, first), model.spec.bundles_per_layer
    if plan.select in ("all", "oracle") or model.activity is None:
        return LayerReads(traffic, Reads(), Reads(traffic.reads, traffic.bytes_read))
    early = wasted = 0.0
    if prefetches(model.spec, plan):
        # Where slots are short, there are none for prefetches either.
        fits = 1 - min(traffic.extra_rounds, 1.0)
        early = traffic.loaded * model.prefetch.recall * fits
        wasted = early * (1 / model.prefetch.precision - 1)
    elif begins_early(plan):
        early = traffic.loaded

    def merged(loaded: float) -> Reads:
        return Reads(*merged_reads(loaded, n_bundles, model.stride, plan.gap_bytes))

    before, after = merged(early + wasted), merged(traffic.loaded - early)
    reads, nbytes = before.reads + after.reads, before.nbytes + after.nbytes
    made = dataclasses.replace(traffic, reads=reads, bytes_read=nbytes, wasted=wasted)
    return LayerReads(made, before, after)


def _layer_traffic(
    model: PlannedModel, plan: Plan, layer: int, first: FirstTokens | None
) -> TokenTraffic:
    """What a layer uses and loads, if all of it is read in the layer's turn."""
    spec, activity = model.spec, model.activity
    n_bundles, slots = spec.bundles_per_layer, plan.slots_per_layer[layer]
    if plan.select in ("all", "oracle") or activity is None:
        streamed = float(n_bundles - (slots if plan.select == "all" else 0))
        nbytes = streamed * model.stride
        reads = max(nbytes / MAX_READ_BYTES, 1.0) if streamed else 0.0
        return TokenTraffic(n_bundles, n_bundles, streamed, reads, nbytes, 0)
    used = activity.used(layer)
    if plan.policy == "window":
        loaded = activity.loads(layer, slots, plan.window)
    else:
        loaded = activity.loads_of_slots(layer, slots, n_bundles)
    if first is not None:
        loaded = activity.loads_of_first(loaded, layer, n_bundles, first)
    reads, bytes_read = merged_reads(loaded, n_bundles, model.stride, plan.gap_bytes)
    extra_rounds = activity.extra_rounds(layer, slots)
    return TokenTraffic(
        used, min(activity.active[layer], used), loaded, reads, bytes_read, extra_rounds
    )


def merged_reads(loaded: float, n_bundles: int, stride: int, gap_bytes: int) -> tuple[float, float]:
    """(reads, bytes) for `loaded` bundles that lie at random places of a layer.

    Bundles at most a gap apart share one read, which reads the gap too.
    """
    density = min(loaded / n_bundles, 1.0)
    if loaded <= 1:
        # Fewer than one in the mean: each is a read, or several where it is larger than one.
        return loaded * math.ceil(stride / MAX_READ_BYTES), loaded * stride
    if density >= 1:
        return max(loaded * stride / MAX_READ_BYTES, 1.0), loaded * stride
    gap = gap_bytes // stride
    apart = (1 - density) ** (gap + 1)
    # Chance that the next bundle lies d bundles on, times the d - 1 between, for d up to the gap.
    between = sum(d * density * (1 - density) ** d for d in range(1, gap + 1))
    joined = loaded - 1
    reads = 1 + joined * apart
    bytes_read = (loaded + joined * between) * stride
    return max(reads, bytes_read / MAX_READ_BYTES), bytes_read
