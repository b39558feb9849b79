"""Our own cost model: a block on this runtime, by what was measured of a machine.

Attention's weights are always in DRAM, bundles in slots or on flash, keys and values in DRAM or on
flash; the CPU computes. Rates are those of a profile: reads, products with one and with many
tokens, memory. Rows of a block are taken to use neurons independently of each other.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final

from flashllm.errors import ProfileError
from flashllm.hardware.curves import MachineRates
from flashllm.hardware.machine_profile import Profile
from flashllm.kv_cache.layout import PageShape, kv_bytes, staged_heads
from flashllm.options import DEFAULT_KV_DTYPE
from flashllm.planning.advisor import Scenario
from flashllm.planning.asked_options import prompt_is_selected
from flashllm.planning.batch.applied_policy import BARRED, ROWS_MAX
from flashllm.planning.batch.block_cost import BlockCost, MemoryNeed, Phase
from flashllm.planning.batch.placement import Affine, affine, shares
from flashllm.planning.batch.policy import Block, Workload
from flashllm.planning.batch.tiered_cost import GROUP_BITS
from flashllm.planning.cost_model import (
    CHUNK,
    Encodings,
    ResidentBytes,
    own_rows_seconds,
    rates_suffice,
)
from flashllm.planning.plan import smallest_ceiling
from flashllm.planning.shape_choice import ShapeChoice
from flashllm.planning.token_traffic import merged_reads
from flashllm.planning.union_tokens import union_tokens_of
from flashllm.planning.ways_to_read import GAP_BYTES, MAX_READ_BYTES, scattered_share
from flashllm.spec import ModelSpec

WRITE_SHARE: Final = 0.5
_WEIGHTS: Final = "weights from flash"
ASSUMED: Final = (
    f"writing to flash at {WRITE_SHARE:g} of the rate of reading, which no profile measures",
)


@dataclass(frozen=True, slots=True)
class BlockOverheads:
    """What a block takes beside bytes and operations: calls, bookkeeping, sampling."""

    step_layer_seconds: float
    """Of a layer's step, whatever its rows."""
    row_layer_seconds: float
    """Of each row of it: its keys and values are appended and attended to by themselves."""
    row_seconds: float
    """Of each row, besides: its prompt is looked up, its answer is written."""
    flash_row_layer_seconds: float = 0.0
    """Of each row of a layer's step whose keys and values are on flash: it waits for its own pages,
    before the next row asks for its."""
    panel_layer_seconds: float = 0.0
    """Of a layer's step of more than one row, besides: its weights are decoded for all of them."""
    start_seconds: float = 0.0
    """Of the first block of a process: threads begin, memory is touched for the first time."""


USUAL_OVERHEADS: Final = BlockOverheads(5e-4, 5.4e-5, 1e-3)
"""Processor time of the thread that computes, of a model of 4 small layers in DRAM (AMD EPYC at 2.6
GHz, busy): 2.2 ms a step besides its rows, and 0.43 ms a row, of which attention was a half."""


@dataclass(frozen=True, slots=True)
class StoreModel:
    """A model, a profile, and what the memory and the disk may hold."""

    scenario: Scenario
    """With a profile that has the machine's rates, and a selector."""
    work: Workload
    dram_bytes: float
    flash_bytes: float
    """That may be taken, the model's own files included."""
    compress: bool = False
    """Whether keys and values have 4 bits; weights have the model's encoding."""
    context_tokens: int | None = None
    """Tokens for which each row has room; None: those of its prompt and its answer."""
    overheads: BlockOverheads = USUAL_OVERHEADS
    begins_empty: bool = False
    """Whether it is the first block of a process, whose prompts fill the slots."""

    def __post_init__(self) -> None:
        profile, spec = self.scenario.profile, self.scenario.spec
        encodings = Encodings.of(spec, self.scenario.sizes.predictor_dtype)
        rates = None if profile is None else profile.rates
        multiplied: set[str] = {spec.dtype, spec.matrix_dtype}
        if self.scenario.options.select == "predicted":
            multiplied.add(self.scenario.sizes.predictor_dtype)
        chunks = {CHUNK.format(dtype) for dtype in multiplied}
        if rates is None or not (
            rates_suffice(rates, encodings) and chunks <= rates.kernel_bytes_per_second.keys()
        ):
            raise ProfileError(
                "there is no profile of this machine with the rates of its memory and kernels for"
                f" {spec.encoding_label}; measure one with `flashllm bench io`, or give --machine"
                " NAME|FILE"
            )

    @property
    def large_batches_are_faster(self) -> bool:
        """More rows at once share what a layer costs, and its weights on the way from DRAM."""
        return True

    def cost(self, block: Block) -> BlockCost:
        """The costs of a block of that size."""
        layers, head = self.scenario.spec.n_layers, self._head_seconds(block)
        answers = self.work.new_tokens - 1
        return BlockCost(
            block=block,
            new_tokens=self.work.new_tokens,
            prefill=_phase(self._prefill(block), layers, head + self._start_seconds),
            decode=_phase(
                self._decode(block), layers * answers, answers * head, self._asks_before(block.rows)
            ),
            needs=tuple(self._needs(block)),
            limit_bytes={"device": 0.0, "dram": self.dram_bytes, "flash": self.flash_bytes},
            barred=BARRED,
        )

    @property
    def _start_seconds(self) -> float:
        return self.overheads.start_seconds if self.begins_empty else 0.0

    @property
    def _profile(self) -> Profile:
        assert self.scenario.profile is not None
        return self.scenario.profile

    @property
    def _rates(self) -> MachineRates:
        assert self._profile.rates is not None
        return self._profile.rates

    @property
    def _dram(self) -> float:
        """Bytes a second from memory, to all threads."""
        rates = self._rates.dram_bytes_per_second
        return rates[max(rates)]

    @property
    def _threads(self) -> int:
        return self.scenario.options.io_threads or self._profile.best_threads(MAX_READ_BYTES)

    @property
    def _in_order(self) -> float:
        """Bytes a second of the largest reads."""
        return self._profile.throughput(MAX_READ_BYTES, self._threads)

    @property
    def _resident(self) -> ResidentBytes:
        predicted = self.scenario.options.select == "predicted"
        return _resident(self.scenario.spec, self.scenario.sizes.predictors if predicted else 0)

    @property
    def _ffn_bytes(self) -> int:
        """All bundles, as they lie on flash."""
        spec = self.scenario.spec
        return spec.bundled_layers * spec.bundles_per_layer * self.scenario.sizes.stride

    @property
    def _row_kv_bytes(self) -> float:
        """Keys and values of one token of one row, in all layers."""
        spec, dtype = self.scenario.spec, self.scenario.options.kv_dtype or DEFAULT_KV_DTYPE
        if self.compress:
            return 2 * spec.n_layers * spec.n_kv_heads * spec.head_dim * GROUP_BITS / 8
        return kv_bytes(spec, 1, dtype)

    def _used_share(self, rows: int) -> float:
        """Share of a layer's bundles that any of `rows` tokens needs."""
        spec, activity = self.scenario.spec, self.scenario.activity
        if activity is None or self.scenario.options.select in ("all", "oracle"):
            return 1.0
        return 1.0 - float((1.0 - activity.used_share(spec.bundles_per_layer)) ** rows)

    def _prefill(self, block: Block) -> dict[str, Affine]:
        """Seconds of a layer for the prompts of all rows, by part."""
        _, wc, wd, _, _, cd, _, _, _ = shares()
        spec, layers = self.scenario.spec, self.scenario.spec.n_layers
        tokens = block.rows * self.work.prompt_tokens
        # Each chunk of all rows' prompts goes through all layers, and reads each once.
        passes = math.ceil(tokens / self._chunk_tokens(block))
        weights = (self._resident.attention + self._resident.gate) * tokens
        bundles = self._ffn_bytes * spec.multiplied_share * tokens / self._chunk(spec.dtype)
        # Behind attention the last layer is computed for the last token of each row alone.
        fewer = tokens - block.rows
        weights -= _behind_last(spec) * fewer
        selecting = 0.0
        if prompt_is_selected(self.scenario.options):
            # All tokens with all neurons, or each with its own: `model.neuron_slices`.
            used = self._used_share(1)
            own = own_rows_seconds(self._rates, spec.dtype, self._ffn_bytes, tokens, used)
            bundles = min(bundles, own)
            if self._resident.predictors:
                narrow = self.scenario.sizes.predictor_dtype
                selecting = self._resident.predictors * tokens / self._chunk(narrow)
        neurons = (bundles + selecting) * (1 - fewer / tokens / spec.bundled_layers)
        products = weights / self._chunk(spec.matrix_dtype) + neurons
        each = self._rates.layer_overhead_ns / 1e9 + self.overheads.row_layer_seconds
        overhead = block.rows * (each + self.overheads.row_seconds / layers)
        seen = self.work.prompt_tokens / 2
        kv = tokens * self._row_kv_bytes / layers
        layer = self._ffn_bytes / layers / self._in_order
        return {
            _WEIGHTS: wd * (passes * layer) + wc * (layer if self.begins_empty else 0),
            "kv to flash": cd * (kv / (WRITE_SHARE * self._in_order)),
            "products": affine(products / layers),
            "attention": affine(kv * seen / self._dram),
            "overhead": affine(overhead),
        }

    def _decode(self, block: Block) -> dict[str, Affine]:
        """Seconds of a layer for one more token of all rows, by part."""
        _, _, wd, _, _, cd, _, _, _ = shares()
        layers, rates, beside = self.scenario.spec.n_layers, self._rates, self.overheads
        seen = self.work.prompt_tokens + self.work.new_tokens / 2
        kv = block.rows * self._row_kv_bytes / layers
        step = max(rates.layer_overhead_ns / 1e9, beside.step_layer_seconds)
        if block.batch_rows > 1:
            step += beside.panel_layer_seconds
        return {
            _WEIGHTS: wd * self._bundles_seconds(block.rows),
            "kv from flash": cd * (block.rows * self._row_kv_seconds(seen)),
            "kv to flash": cd * (kv / (WRITE_SHARE * self._in_order)),
            "products": affine(block.batches * self._products_seconds(block.batch_rows)),
            "attention": affine(kv * seen / self._dram),
            "overhead": affine(block.batches * step + block.rows * beside.row_layer_seconds)
            + cd * (block.rows * beside.flash_row_layer_seconds),
        }

    @property
    def _pages(self) -> PageShape:
        dtype = self.scenario.options.kv_dtype or DEFAULT_KV_DTYPE
        return PageShape.of(self.scenario.spec, "int4" if self.compress else dtype)

    def _row_kv_seconds(self, seen: float) -> float:
        """Of reading a layer's keys and values of one row, of so many tokens, from flash.

        The pages of a head are one read. Some heads' are read at once, and the next ones' only when
        these are there.
        """
        pages, heads = self._pages, self.scenario.spec.n_kv_heads
        at_once = staged_heads(pages, self._context)
        of_head = seen * self._row_kv_bytes / self.scenario.spec.n_layers / heads
        reads = max(math.ceil(of_head / MAX_READ_BYTES), 1) * at_once
        seconds = self._profile.read_seconds(reads, at_once * of_head, self._threads)
        return heads / at_once * seconds

    @property
    def _context(self) -> int:
        """Tokens for which each row has room."""
        return self.context_tokens or self.work.prompt_tokens + self.work.new_tokens

    def _chunk_tokens(self, block: Block) -> int:
        """Tokens of all rows' prompts that go through the layers together, if slots take the rest.

        What keys and values on flash leave of the ceiling is not counted, which may be more.
        """
        scenario = self.scenario
        rows, stride = min(block.batch_rows, ROWS_MAX), scenario.sizes.stride
        kv = block.rows * self._context * self._row_kv_bytes
        spare_bytes = max(int(self.dram_bytes - self._fixed_bytes(block) - kv), 0)
        options = scenario.options.having(context=self._context, contexts=rows)
        shapes = ShapeChoice(scenario.spec, stride, options)
        return shapes.grown(self._union_tokens, spare_bytes).tokens

    @property
    def _union_tokens(self) -> int:
        """Up to so many rows read what any of them needs of a layer, more read it in order."""
        scenario, options = self.scenario, self.scenario.options
        assert options.select is not None
        scattered = scattered_share(scenario.sizes.stride, self._threads, self._profile)
        return union_tokens_of(scenario.spec, scenario.activity, options.select, scattered)

    def _asks_before(self, rows: int) -> bool:
        """Whether a layer's reads begin when its input is there, and its products behind them.

        What any of several rows needs is known then: `model.block_schedule`. Layers that are read
        in order come ahead of it, and so does what a single row is guessed to need.
        """
        return 1 < rows <= self._union_tokens

    def _fixed_bytes(self, block: Block) -> float:
        """What such a block takes at least, besides keys and values."""
        scenario, spec = self.scenario, self.scenario.spec
        rows, tokens = min(block.batch_rows, ROWS_MAX), self._context
        options = scenario.options.having(context=tokens, contexts=rows)
        smallest = smallest_ceiling(spec, scenario.sizes, options, scenario.profile)
        held = kv_bytes(spec, tokens, options.kv_dtype or DEFAULT_KV_DTYPE)
        return float(smallest - rows * held)

    def _bundles_seconds(self, rows: int) -> float:
        """Of reading what a token of each row needs of a layer, were none of it in DRAM.

        Where that is most of it, the whole layer is read in order.
        """
        spec, stride = self.scenario.spec, self.scenario.sizes.stride
        used = self._used_share(rows) * spec.bundles_per_layer
        reads, nbytes = merged_reads(used, spec.bundles_per_layer, stride, GAP_BYTES)
        seconds = self._profile.read_seconds(reads, nbytes, self._threads)
        if not self._asks_before(rows):
            seconds = min(seconds, spec.bundles_per_layer * stride / self._in_order)
        return seconds * spec.bundled_layers / spec.n_layers

    def _products_seconds(self, rows: int) -> float:
        """Of one layer's products for a token of each of `rows`, which are computed together."""
        spec, rates, resident = self.scenario.spec, self._rates, self._resident
        dtype, ffn = spec.dtype, self._ffn_bytes
        beside = self._matrix_seconds(resident.attention + resident.gate, spec.matrix_dtype, rows)
        narrow = self.scenario.sizes.predictor_dtype
        predictors = self._matrix_seconds(resident.predictors, narrow, rows)
        read = ffn * self._used_share(rows) / rates.rows_bytes_per_second[dtype]
        # All rows with what any of them needs, or each with its own: `model.neuron_slices`.
        tiles = ffn * self._used_share(rows) * rows / self._chunk(dtype)
        if spec.experts is not None:
            tiles = ffn * self._used_share(1) * rows / self._chunk(dtype)
        slices = ffn * self._used_share(1) * rows / rates.rows_bytes_per_second[dtype]
        return (beside + predictors + max(read, min(tiles, slices))) / spec.n_layers

    def _head_seconds(self, block: Block) -> float:
        """Of the logits of one token of each row, and what a token costs besides."""
        dtype, head = self.scenario.spec.matrix_dtype, self._resident.head
        batch = self._matrix_seconds(head, dtype, block.batch_rows)
        return block.batches * (batch + self._rates.token_overhead_ns / 1e9)

    def _matrix_seconds(self, nbytes: float, dtype: str, rows: int) -> float:
        """Of matrices times a vector of each row: from memory once, or as many products."""
        if not nbytes:
            return 0.0
        once = nbytes / self._rates.kernel_bytes_per_second[dtype]
        return max(once, nbytes * rows / self._chunk(dtype))

    def _chunk(self, dtype: str) -> float:
        return self._rates.kernel_bytes_per_second[CHUNK.format(dtype)]

    def _needs(self, block: Block) -> list[MemoryNeed]:
        """What DRAM and flash hold: what a single row needs, and what the block adds."""
        _, wc, _, _, cc, cd, _, _, _ = shares()
        sizes, pages = self.scenario.sizes, self._pages
        kv = block.rows * self._context * self._row_kv_bytes
        heads = staged_heads(pages, self._context)
        staged = 2 * heads * pages.blocks(self._context) * pages.page_bytes
        # Hidden states are those of a chunk and of a step of all rows, which the plan has.
        held = wc * self._ffn_bytes + cc * kv + cd * staged + self._fixed_bytes(block)
        files = sizes.embeddings + sizes.attention + self._ffn_bytes
        return [
            *(MemoryNeed("dram", phase, held) for phase in ("prefill", "decode")),
            *(MemoryNeed("flash", phase, cd * kv + files) for phase in ("prefill", "decode")),
        ]


# A search asks for it some thousand times.
@functools.lru_cache(maxsize=4)
def _resident(spec: ModelSpec, predictors: int) -> ResidentBytes:
    return ResidentBytes.of(spec, predictors)


@functools.lru_cache(maxsize=4)
def _behind_last(spec: ModelSpec) -> int:
    last = ResidentBytes.behind_last(spec, queries=False)
    return last.attention + last.gate


def _phase(
    parts: dict[str, Affine], steps: int, beside_seconds: float, asks_before: bool = False
) -> Phase:
    """With `asks_before`, weights are read first, and then computed."""
    flash = tuple(name for name in parts if name.endswith("flash"))
    computed = tuple(name for name in parts if name not in flash)
    lanes = {"flash": flash, "compute": computed}
    if asks_before:
        lanes = {"flash": flash, "weights from flash, then compute": (_WEIGHTS, *computed)}
    return Phase(parts, lanes, steps, beside_seconds)
