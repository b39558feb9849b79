"""How long a token will take, from a shape, a plan, a profile and what tokens use. Pure.

The plan's `overlap` says what is computed while reads are under way: prefetches overlap with
attention, or with everything up to the next layer. Where every neuron is needed, and in a prompt,
the next block is read while one is computed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from flashllm.hardware.curves import MachineRates
from flashllm.hardware.machine_profile import Profile
from flashllm.planning.activation_stats import Activity
from flashllm.planning.cost_model import (
    DramBytes,
    DramSeconds,
    Encodings,
    ResidentBytes,
    chunk_seconds,
    dram_bytes_a_token,
    dram_seconds,
    rates_suffice,
)
from flashllm.planning.plan import MAX_READ_BYTES, Plan
from flashllm.spec import ModelSpec

PROMPT_TOKENS = 128
ONE_THREAD_WEIGHTS = 1 << 22
"""Weights of a feed-forward matrix up to which one thread computes a chunk of a prompt. Two gain
little there, and where other programs keep the cores busy they wait for each other (measured: ten
times as long, and more)."""
_JSON_NAMES = {"extra_rounds": "passes", "wasted": "in_vain", "prefetch": "guesses"}


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
class TokenSeconds:
    """Where the time of a decoded token goes. The parts add up to `total` plus `overlap`."""

    flash: float
    dram: float
    overhead: float
    total: float

    @property
    def overlap(self) -> float:
        """Time in which reading and computing go on at once."""
        return self.flash + self.dram + self.overhead - self.total

    @property
    def bound(self) -> str:
        """What a token waits for most."""
        parts = {"flash": self.flash, "dram": self.dram, "overhead": self.overhead}
        return max(parts, key=lambda name: parts[name])


PROMPT_LENGTHS = (8, 64, 512, 4096)


@dataclass(frozen=True, slots=True)
class PromptSeconds:
    """Seconds until the first token after a prompt of so many tokens."""

    tokens: int
    cold: float
    """With empty slots."""
    warm: float
    """With the slots as prompts before leave them."""


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """What a plan is expected to cost; seconds are None where the profile lacks the rates."""

    traffic: TokenTraffic
    dram: DramBytes
    context_tokens: int
    """Tokens in the context when the estimated token is decoded."""
    prompt_tokens: int
    token: TokenSeconds | None
    first_token_seconds: float | None
    prompts: tuple[PromptSeconds, ...]
    """Of `PROMPT_LENGTHS`, those that the context holds; empty without rates."""
    assumed: str
    """What was assumed about the activity, or "" where it was recorded."""
    prefetch: PrefetchAccuracy | None
    """The assumed accuracy, where the plan prefetches by predictors."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, under the stored names of `plan --json`."""
        token = self.token
        values = {_JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}
        traffic = values["traffic"]
        values["traffic"] = {_JSON_NAMES.get(name, name): n for name, n in traffic.items()}
        return values | {
            "hit_rate": self.traffic.hit_rate,
            "dram_bytes": self.dram.total,
            "bound": token.bound if token else None,
            "overlap": token.overlap if token else None,
        }


@dataclass(frozen=True, slots=True)
class Model:
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


def expect(
    model: Model,
    plan: Plan,
    profile: Profile | None,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    flash_speed: float = 1.0,
) -> TokenEstimate:
    """What the tokens after a prompt will cost, on a disk `flash_speed` times as fast."""
    spec, activity = model.spec, model.activity
    prompt_tokens = min(prompt_tokens, plan.context)
    layers = [_layer_reads(model, plan, layer) for layer in range(spec.n_layers)]
    traffic = TokenTraffic(
        *(
            sum(getattr(one.traffic, f.name) for one in layers)
            for f in dataclasses.fields(TokenTraffic)
        )
    )
    speculative = _prefetches(spec, plan)
    predictors = model.predictors if plan.select == "predicted" else 0
    # A speculative prefetch asks the predictor once more.
    predictors *= 2 if speculative else 1
    moved = dram_bytes_a_token(
        spec,
        ResidentBytes.of(spec, predictors),
        traffic.used,
        traffic.loaded,
        spec.bundle_bytes,
        prompt_tokens,
        bundles_active=traffic.active,
        kv_dtype=plan.kv_dtype,
    )
    token = first = None
    prompts: tuple[PromptSeconds, ...] = ()
    rates = None if profile is None else profile.rates
    if profile is not None and rates is not None and rates_suffice(rates, model.encodings):
        clock = _Clock(model, plan, profile, rates, flash_speed)
        token = clock.token(layers, traffic, moved)
        first = clock.first_token(prompt_tokens, moved)
        prompts = clock.prompts(moved)
    words = activity.assumed if activity is not None else ""
    prefetch = model.prefetch if speculative else None
    return TokenEstimate(
        traffic, moved, prompt_tokens, prompt_tokens, token, first, prompts, words, prefetch
    )


def _begins_early(plan: Plan) -> bool:
    """Whether reads may begin before the layer's turn."""
    return plan.overlap in ("attention", "layer") and plan.select != "all"


def _prefetches(spec: ModelSpec, plan: Plan) -> bool:
    """Whether prefetches are speculative: by predictors, in a block whose input is not known."""
    return _begins_early(plan) and plan.select == "predicted" and spec.block == "sequential"


class _Reads(NamedTuple):
    """Reads that are issued together."""

    reads: float = 0.0
    nbytes: float = 0.0


@dataclass(frozen=True, slots=True)
class _LayerReads:
    """A layer's traffic, and its reads by when they begin."""

    traffic: TokenTraffic
    early: _Reads
    """Begun before the layer's turn: prefetched, or since the input was known."""
    late: _Reads
    """Begun when the active set is known."""


def _layer_reads(model: Model, plan: Plan, layer: int) -> _LayerReads:
    traffic, n_bundles = _layer_traffic(model, plan, layer), model.spec.bundles_per_layer
    if plan.select in ("all", "oracle") or model.activity is None:
        return _LayerReads(traffic, _Reads(), _Reads(traffic.reads, traffic.bytes_read))
    early = wasted = 0.0
    if _prefetches(model.spec, plan):
        # Where slots are short, there are none for prefetches either.
        fits = 1 - min(traffic.extra_rounds, 1.0)
        early = traffic.loaded * model.prefetch.recall * fits
        wasted = early * (1 / model.prefetch.precision - 1)
    elif _begins_early(plan):
        early = traffic.loaded

    def merged(loaded: float) -> _Reads:
        return _Reads(*merged_reads(loaded, n_bundles, model.stride, plan.gap_bytes))

    first, second = merged(early + wasted), merged(traffic.loaded - early)
    reads, nbytes = first.reads + second.reads, first.nbytes + second.nbytes
    made = dataclasses.replace(traffic, reads=reads, bytes_read=nbytes, wasted=wasted)
    return _LayerReads(made, first, second)


def _layer_traffic(model: Model, plan: Plan, layer: int) -> TokenTraffic:
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
    if loaded <= 1 or density >= 1:
        reads = loaded if loaded <= 1 else max(loaded * stride / MAX_READ_BYTES, 1.0)
        return reads, loaded * stride
    gap = gap_bytes // stride
    apart = (1 - density) ** (gap + 1)
    # Chance that the next bundle lies d bundles on, times the d - 1 between, for d up to the gap.
    between = sum(d * density * (1 - density) ** d for d in range(1, gap + 1))
    joined = loaded - 1
    reads = 1 + joined * apart
    bytes_read = (loaded + joined * between) * stride
    return max(reads, bytes_read / MAX_READ_BYTES), bytes_read


@dataclass(frozen=True, slots=True)
class _Clock:
    """The rates of one machine, applied to one model and plan."""

    model: Model
    plan: Plan
    profile: Profile
    rates: MachineRates
    flash_speed: float

    def token(
        self, layers: list[_LayerReads], traffic: TokenTraffic, moved: DramBytes
    ) -> TokenSeconds:
        spec, rates = self.model.spec, self.rates
        seconds = dram_seconds(rates, self.model.encodings, moved)
        overhead = (spec.n_layers * rates.layer_overhead_ns + rates.token_overhead_ns) / 1e9
        if self.plan.select in ("all", "oracle"):
            # The oracle looks at every neuron before it names those that are not zero.
            return self._streamed(seconds.total, seconds.ffn, overhead)
        early = sum(self._read_seconds(*layer.early) for layer in layers)
        late = sum(self._read_seconds(*layer.late) for layer in layers)
        flash, hidden = early + late, self._hidden(early, late, traffic, seconds)
        total = flash + seconds.total + overhead - hidden
        return TokenSeconds(flash, seconds.total, overhead, total)

    def _hidden(
        self, early: float, late: float, traffic: TokenTraffic, seconds: DramSeconds
    ) -> float:
        """Seconds of reading that pass while something is computed."""
        spec, plan = self.model.spec, self.plan
        if plan.overlap == "none":
            return 0.0
        if plan.overlap == "layer" and _prefetches(spec, plan):
            # From one layer's turn to the next; nothing is read while the head is computed.
            return min(early, seconds.total - seconds.head)
        # Meanwhile all rows but the down rows are multiplied for neurons that are in DRAM.
        before_down = (spec.rows_per_neuron - 1) * traffic.used
        dots = seconds.ffn * before_down / max(before_down + traffic.active, 1.0)
        hits = dots * traffic.hit_rate
        attention = seconds.attention + seconds.kv
        if _prefetches(spec, plan):
            # The predictor is asked twice: for the prefetch, and again after attention.
            return min(early, attention + seconds.predictors / 2) + min(late, hits)
        return min(early, attention + hits) + min(late, hits)

    def prompts(self, moved: DramBytes) -> tuple[PromptSeconds, ...]:
        """The first token after prompts of `PROMPT_LENGTHS`."""
        found = []
        for tokens in PROMPT_LENGTHS:
            cold = self.first_token(tokens, moved)
            warm = self.first_token(tokens, moved, warm=True)
            if tokens < self.plan.context and cold is not None and warm is not None:
                found.append(PromptSeconds(tokens, cold, warm))
        return tuple(found)

    def first_token(self, prompt_tokens: int, moved: DramBytes, warm: bool = False) -> float | None:
        """Seconds to read a prompt with empty slots, or `warm`, chunk by chunk.

        Each chunk reads all weights, unless the one before leaves all of a layer in slots.
        """
        spec, shape = self.model.spec, self.plan.prefill
        resident = moved.attention + moved.gate
        small = spec.d_model * spec.d_ffn <= ONE_THREAD_WEIGHTS
        seconds = 0.0
        for start in range(0, prompt_tokens, shape.tokens):
            tokens = min(shape.tokens, prompt_tokens - start)
            beside = chunk_seconds(self.rates, spec.matrix_dtype, resident, tokens, small)
            block_bytes = shape.bundles * spec.bundle_bytes
            block = chunk_seconds(self.rates, spec.dtype, block_bytes, tokens, small)
            if beside is None or block is None:
                return None
            overhead = self.rates.layer_overhead_ns / 1e9
            kept = self._kept_layers if start or warm else self._pinned
            seconds += self._blocks(beside / spec.n_layers + overhead, block, kept)
        head = dram_seconds(self.rates, self.model.encodings, moved).head
        return seconds + head + self.rates.token_overhead_ns / 1e9

    def _streamed(self, dram: float, ffn: float, overhead: float) -> TokenSeconds:
        """A token that needs every neuron: first those in memory, then block after block."""
        spec, plan = self.model.spec, self.plan
        share = plan.prefill.bundles / (spec.n_layers * spec.bundles_per_layer)
        beside = (dram - ffn + overhead) / spec.n_layers
        total = self._blocks(beside, ffn * share, self._pinned)
        # What lies in a window's slots is read all the same; only with all do neurons stay.
        pinned = sum(plan.slots_per_layer) if plan.select == "all" else 0
        streamed = spec.n_layers * spec.bundles_per_layer - pinned
        flash = streamed / plan.prefill.bundles * self._block_seconds()
        return TokenSeconds(flash, dram, overhead, total)

    @property
    def _pinned(self) -> Sequence[int]:
        """Bundles of each layer that are in memory before any token."""
        slots = self.plan.slots_per_layer
        return slots if self.plan.select == "all" else [0] * len(slots)

    @property
    def _kept_layers(self) -> Sequence[int]:
        """Bundles of each layer that a chunk of a prompt leaves for the next: all, or none.

        Where some are missing, reads join across those that are there.
        """
        if self.plan.select == "all":
            return self._pinned
        every = self.model.spec.bundles_per_layer
        return [every if slots >= every else 0 for slots in self.plan.slots_per_layer]

    def _blocks(self, beside: float, block: float, kept_per_layer: Sequence[int]) -> float:
        """Seconds of all layers, block by block, with a ring read ahead.

        `beside` is what each layer computes besides its blocks, `block` the seconds of one block;
        the bundles that are kept are not read.
        """
        spec, plan = self.model.spec, self.plan
        read = self._block_seconds()
        total = last = 0.0
        for kept in kept_per_layer:
            blocks = (spec.bundles_per_layer - kept) / plan.prefill.bundles
            before = beside + kept / plan.prefill.bundles * block
            # Once the ring is full, the device waits for the rest of the layer.
            idle = max(before - min(plan.prefill_blocks, blocks) * read, 0) if blocks > 0 else 0
            total += max(before + blocks * block, blocks * read + idle)
            last = min(blocks, 1) * block if blocks > 0 else 0.0
        return total + last

    def _block_seconds(self) -> float:
        """Seconds to read one block of a layer, cut into the largest reads."""
        nbytes = self.plan.prefill.bundles * self.model.stride
        reads = math.ceil(nbytes / MAX_READ_BYTES)
        return self._read_seconds(reads, nbytes)

    def _read_seconds(self, reads: float, nbytes: float) -> float:
        """Until the last of so many reads is there: one's latency, the others at full rate.

        Throughput alone would have the first one arrive at once; of few reads that is most of it.
        """
        if reads <= 0 or nbytes <= 0:
            return 0.0
        one = nbytes / reads
        latency = self.profile.read_seconds(1, one, 1)
        if reads <= 1:
            return reads * latency / self.flash_speed
        working = min(self.plan.io_threads, math.ceil(reads))
        others = (reads - 1) * one / self.profile.throughput(one, working)
        return (latency + others) / self.flash_speed
