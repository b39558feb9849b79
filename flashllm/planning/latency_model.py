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
from typing import Any

from flashllm.hardware.curves import MachineRates
from flashllm.hardware.machine_profile import Profile
from flashllm.kv_cache.layout import PageShape
from flashllm.kv_cache.page_reads import flash_reads_a_token
from flashllm.planning.activation_stats import FirstTokens
from flashllm.planning.cost_model import (
    DramBytes,
    DramSeconds,
    ResidentBytes,
    chunk_seconds,
    dram_bytes_a_token,
    dram_seconds,
    own_rows_seconds,
    rates_suffice,
)
from flashllm.planning.plan import Plan
from flashllm.planning.token_traffic import (
    LayerReads,
    PlannedModel,
    PrefetchAccuracy,
    TokenTraffic,
    layer_reads,
    merged_reads,
    prefetches,
)
from flashllm.planning.ways_to_read import MAX_READ_BYTES

PROMPT_TOKENS = 128
KV_READS = 32
"""Reads of keys and values in flight."""
_JSON_NAMES = {"extra_rounds": "passes", "wasted": "in_vain", "prefetch": "guesses"}


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


FIRST_TOKENS = 128
"""Tokens of a run with empty slots that are estimated; `bench tokens` decodes as many."""
_FIRST_PROMPT = 4
"""Tokens of the short prompt before them, as `bench tokens` has it; what they use is in slots."""
PROMPT_LENGTHS = (8, 64, 512, 4096)


@dataclass(frozen=True, slots=True)
class PromptSeconds:
    """Seconds until the first token after a prompt of so many tokens."""

    tokens: int
    cold_seconds: float
    """With empty slots."""
    warm_seconds: float
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
    kv_flash_bytes: int = 0
    """Keys and values that a token reads from flash besides, when the context is full."""
    kv_flash_seconds: float | None = None
    """What that takes, on top of `token`; None where the profile lacks the rates."""

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
class FirstEstimate:
    """A token's mean over the first ones of a run, in which empty slots are filled."""

    tokens: int
    hit_rate: float
    bytes_read: float
    """From flash, a token."""
    seconds: float | None
    """None where the profile lacks the rates."""


def expect(
    model: PlannedModel,
    plan: Plan,
    profile: Profile | None,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    flash_speed: float = 1.0,
) -> TokenEstimate:
    """What the tokens after a prompt will cost, on a disk `flash_speed` times as fast."""
    spec, activity = model.spec, model.activity
    prompt_tokens = min(prompt_tokens, plan.context)
    layers, traffic, moved = _decoded(model, plan, prompt_tokens)
    speculative = prefetches(spec, plan)
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
    kv_bytes, kv_seconds = 0, None if profile is None else 0.0
    if plan.kv_pages is not None:
        pages = flash_reads_a_token(
            spec, plan.kv_dtype, plan.kv_pages, plan.context, plan.kv_selection
        )
        kv_bytes = pages.total
        if profile is not None:
            page_bytes = PageShape.of(spec, plan.kv_dtype).page_bytes
            in_order, scattered = (
                profile.throughput(read_bytes, KV_READS) * flash_speed
                for read_bytes in (MAX_READ_BYTES, page_bytes)
            )
            kv_seconds = pages.in_order / in_order + pages.scattered / scattered
    return TokenEstimate(
        traffic, moved, prompt_tokens, prompt_tokens, token, first, prompts, words, prefetch,
        kv_bytes, kv_seconds,
    )  # fmt: skip


def expect_first(model: PlannedModel, plan: Plan, profile: Profile | None) -> FirstEstimate | None:
    """What the first tokens of a run cost, whose slots are empty; None where none keep anything."""
    if plan.select in ("all", "oracle") or model.activity is None:
        return None
    first = FirstTokens(_FIRST_PROMPT, min(FIRST_TOKENS, plan.context))
    layers, traffic, moved = _decoded(model, plan, first.tokens // 2, first)
    seconds = None
    rates = None if profile is None else profile.rates
    if profile is not None and rates is not None and rates_suffice(rates, model.encodings):
        seconds = _Clock(model, plan, profile, rates, 1.0).token(layers, traffic, moved).total
    return FirstEstimate(first.tokens, traffic.hit_rate, traffic.bytes_read, seconds)


def _decoded(
    model: PlannedModel, plan: Plan, context_tokens: int, first: FirstTokens | None = None
) -> tuple[list[LayerReads], TokenTraffic, DramBytes]:
    """A decoded token's reads by layer, their sum, and what goes through memory."""
    spec = model.spec
    layers = [layer_reads(model, plan, layer, first) for layer in range(spec.bundled_layers)]
    traffic = TokenTraffic(
        *(
            sum(getattr(one.traffic, f.name) for one in layers)
            for f in dataclasses.fields(TokenTraffic)
        )
    )
    predictors = model.predictors if plan.select == "predicted" else 0
    # A speculative prefetch asks the predictor once more.
    predictors *= 2 if prefetches(spec, plan) else 1
    moved = dram_bytes_a_token(
        spec,
        ResidentBytes.of(spec, predictors),
        traffic.used,
        traffic.loaded,
        spec.bundle_bytes,
        context_tokens,
        bundles_active=traffic.active,
        kv_dtype=plan.kv_dtype,
    )
    return layers, traffic, moved


@dataclass(frozen=True, slots=True)
class _Clock:
    """The rates of one machine, applied to one model and plan."""

    model: PlannedModel
    plan: Plan
    profile: Profile
    rates: MachineRates
    flash_speed: float

    def token(
        self, layers: list[LayerReads], traffic: TokenTraffic, moved: DramBytes
    ) -> TokenSeconds:
        spec, rates = self.model.spec, self.rates
        seconds = dram_seconds(rates, self.model.encodings, moved)
        overhead = (spec.n_layers * rates.layer_overhead_ns + rates.token_overhead_ns) / 1e9
        if self.plan.select in ("all", "oracle"):
            # The oracle looks at every neuron before it names those that are not zero.
            return self._streamed(seconds.total, seconds.ffn, overhead)
        if spec.experts is not None:
            flash, hidden = self._experts(layers, seconds.ffn / traffic.used)
        else:
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
        if plan.overlap == "layer" and prefetches(spec, plan):
            # From one layer's turn to the next; nothing is read while the head is computed.
            return min(early, seconds.total - seconds.head)
        # Meanwhile all rows but the down rows are multiplied for neurons that are in DRAM.
        before_down = (spec.rows_per_neuron - 1) * traffic.used
        dots = seconds.ffn * before_down / max(before_down + traffic.active, 1.0)
        hits = dots * traffic.hit_rate
        attention = seconds.attention + seconds.kv
        if prefetches(spec, plan):
            # The predictor is asked twice: for the prefetch, and again after attention.
            return min(early, attention + seconds.predictors / 2) + min(late, hits)
        return min(early, attention + hits) + min(late, hits)

    def _experts(self, layers: list[LayerReads], expert: float) -> tuple[float, float]:
        """Seconds of reading experts, and of them those in which the layer's hits are computed.

        `expert` is what computing one takes. Experts are few and their reads long: in many layers
        none is missing, and there hits hide nothing. So each number of misses counts by itself.
        """
        flash = hidden = 0.0
        n_bundles, plan = self.model.spec.bundles_per_layer, self.plan
        for layer in layers:
            used = round(layer.traffic.used)
            missing = layer.traffic.loaded / layer.traffic.used
            for misses in range(1, used + 1):
                share = math.comb(used, misses) * missing**misses * (1 - missing) ** (used - misses)
                read = self._read_seconds(
                    *merged_reads(misses, n_bundles, self.model.stride, plan.gap_bytes)
                )
                flash += share * read
                if plan.overlap != "none":
                    hidden += share * min(read, (used - misses) * expert)
        return flash, hidden

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

        Each chunk reads all weights, unless the one before leaves all of a layer in slots, or a
        chunk of few tokens reads only what it needs.
        """
        spec, shape = self.model.spec, self.plan.prefill
        resident = moved.attention + moved.gate
        behind = ResidentBytes.behind_last(spec, queries=False)
        few_tokens = self.plan.warm_needed_tokens if warm else self.plan.needed_tokens
        seconds = 0.0
        for start in range(0, prompt_tokens, shape.tokens):
            tokens = min(shape.tokens, prompt_tokens - start)
            asked = self._asked_share(tokens, prompt_tokens - start)
            matrices = resident - (1 - asked) * (behind.attention + behind.gate)
            beside = chunk_seconds(self.rates, spec.matrix_dtype, matrices, tokens)
            block_bytes = shape.bundles * spec.bundle_bytes
            # Of experts, each is multiplied with the tokens that chose it.
            multiplied = block_bytes * spec.multiplied_share
            block = chunk_seconds(self.rates, spec.dtype, multiplied, tokens)
            if beside is None or block is None:
                return None
            overhead = self.rates.layer_overhead_ns / 1e9
            # All tokens with all neurons, or each with its own: `model.neuron_slices`.
            own = math.inf
            if self.plan.prompt_is_selected and spec.experts is None:
                own = own_rows_seconds(
                    self.rates, spec.dtype, block_bytes, tokens, self._used_share,
                    by_blocks=tokens > few_tokens,
                )  # fmt: skip
                selecting = self._selecting_seconds(tokens)
                beside += selecting * (1 - (1 - asked) / spec.bundled_layers)
            if tokens <= few_tokens:
                here = start > 0 or warm
                computed = beside + spec.n_layers * overhead
                seconds += self._needed(tokens, computed, block, own, here)
                continue
            block = min(block, own)
            kept = self._kept_layers if start or warm else self._pinned
            each = beside / spec.n_layers + overhead
            seconds += self._blocks(each, block, kept, asked)
        head = dram_seconds(self.rates, self.model.encodings, moved).head
        return seconds + head + self.rates.token_overhead_ns / 1e9

    def _selecting_seconds(self, tokens: int) -> float:
        """Of predicting what so many tokens of a prompt need; 0 if no rate is known."""
        if self.plan.select != "predicted":
            return 0.0
        narrow = self.model.encodings.predictors
        return chunk_seconds(self.rates, narrow, self.model.predictors, tokens) or 0.0

    def _asked_share(self, tokens: int, left: int) -> float:
        """Of a chunk's tokens, those that the last layer is computed for behind attention.

        The last one, and of the last chunk those that seed slots; `left` tokens of the prompt are
        this chunk's and later ones.
        """
        seeds = self.plan.seed_tokens - (left - tokens)
        return min(max(seeds, 1), tokens) / tokens

    @property
    def _used_share(self) -> float:
        """Of a layer's bundles, those that a token uses."""
        activity = self.model.activity
        bundles = self.model.spec.bundles_per_layer
        return 1.0 if activity is None else activity.used_share(bundles)

    def _needed(self, tokens: int, beside: float, block: float, own: float, warm: bool) -> float:
        """Seconds of all layers where few tokens read what they need: reading, then computing.

        `beside` is what all layers compute besides; products of a block take `block`, or `own` with
        each token's own rows. `warm`: what slots hold is not read, where neurons are as likely
        there as any.
        """
        model, plan = self.model, self.plan
        n_bundles = model.spec.bundles_per_layer
        seconds = beside
        for layer, slots in enumerate(plan.slots_per_layer):
            union = n_bundles if model.activity is None else model.activity.aggregate(layer, tokens)
            missing = union * (1 - slots / n_bundles) if warm else union
            reads, nbytes = merged_reads(missing, n_bundles, model.stride, plan.gap_bytes)
            seconds += self._read_seconds(reads, nbytes)
            seconds += min(block * union, own * n_bundles) / plan.prefill.bundles
        return seconds

    def _streamed(self, dram: float, ffn: float, overhead: float) -> TokenSeconds:
        """A token that needs every neuron: first those in memory, then block after block."""
        spec, plan = self.model.spec, self.plan
        share = plan.prefill.bundles / (spec.bundled_layers * spec.bundles_per_layer)
        beside = (dram - ffn + overhead) / spec.n_layers
        total = self._blocks(beside, ffn * share, self._pinned)
        # What lies in a window's slots is read all the same; only with all do neurons stay.
        pinned = sum(plan.slots_per_layer) if plan.select == "all" else 0
        streamed = spec.bundled_layers * spec.bundles_per_layer - pinned
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

    def _blocks(
        self, beside: float, block: float, kept_per_layer: Sequence[int], of_last: float = 1.0
    ) -> float:
        """Seconds of all layers, block by block, with a ring read ahead.

        `beside` is what each layer computes besides its blocks, `block` the seconds of one block,
        of the last layer a share of it; the bundles that are kept are not read.
        """
        spec, plan = self.model.spec, self.plan
        read = self._block_seconds()
        total = last = 0.0
        for number, kept in enumerate(kept_per_layer):
            if number == len(kept_per_layer) - 1:
                block *= of_last
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
