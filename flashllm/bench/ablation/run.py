"""The paper's Table 2 as real runs on one model: what each part of the method saves.

All rows decode the same tokens of the same text with the same weights; they differ in what stays in
memory and in how the rest is read. The bytes that a row should read are computed independently of
the runtime: from the shape, and from the recorded active sets by the window's definition.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.bench.ablation.active_sets import ActiveSets, RecordingSelector
from flashllm.bench.ablation.resident_reread import ResidentStream
from flashllm.bench.ablation.rows import (
    ADDITIONS,
    Row,
    added_rows,
    check_same_weights,
    predictors_of,
    table_rows,
)
from flashllm.engine.loading import make_selector, model_sizes
from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.manifest import read_manifest
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.hardware.staleness import find_profile
from flashllm.model.decoder import Decoder
from flashllm.options import (
    DEFAULT_IO_THREADS,
    DEFAULT_VERIFY,
    KvDType,
    ModelOptions,
    Select,
    Verify,
)
from flashllm.planning.model_facts import AVAILABLE_SHARE, choose_selector
from flashllm.planning.plan import Plan, make_plan
from flashllm.planning.shape_estimate import Weights
from flashllm.planning.slot_allocation import DEFAULT_WINDOW
from flashllm.system.memory_limit import available_bytes
from flashllm.system.processors import compute_threads
from flashllm.telemetry.costs import TokenCost
from flashllm.telemetry.meter import Meter
from flashllm.units import format_ceiling
from flashllm.weight_cache.blocks import smallest_slots

PROMPT_TOKENS = 16
DENSE_TOKENS = 2
"""Tokens decoded in rows that need every neuron: few, since each token reads the same bytes."""
OnRow = Callable[[Row, int], None]
"""Called before each run with its row and the number of the round, from 0."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an ablation; `memory`, in bytes, is the ceiling of the whole process."""

    tokens: int = 32
    runs: int = 5
    memory: int | None = None
    select: Select | None = None
    window: int | None = None
    io_threads: int | None = None
    direct: bool = True
    add: bool = False
    kv_dtype: KvDType | None = None
    """Encoding of keys and values; None for the default."""
    verify: Verify | None = None
    """Which weights are held against their checksums; None for the default."""
    profile: Path | None = None
    """The profile from which `added_rows` take threads and gap; None for the disk's own."""
    beside: tuple[Path, ...] = ()
    """With `add`: other conversions of the model, which differ in their predictors only."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a row: the costs of its tokens, in order."""

    costs: tuple[TokenCost, ...]
    answers: str
    """Digest of all logits."""

    @property
    def bytes_a_token(self) -> float:
        """Bytes asked from the device."""
        return sum(cost.bytes_read for cost in self.costs) / len(self.costs)

    @property
    def io_seconds(self) -> float:
        """Seconds per token with at least one read under way."""
        return sum(cost.io_busy_ns for cost in self.costs) / len(self.costs) / 1e9

    @property
    def seconds(self) -> float:
        """Wall time a token."""
        return sum(cost.wall_ns for cost in self.costs) / len(self.costs) / 1e9

    @property
    def reads(self) -> float:
        """Reads a token."""
        return sum(cost.reads for cost in self.costs) / len(self.costs)


@dataclass(slots=True)
class RowResult:
    """One row and all of its runs."""

    row: Row
    held_bytes: int
    """Bytes of weights that stay in DRAM, and of the slots."""
    formula_bytes: float
    """Bytes that a token should read."""
    needed_bytes: int
    """Memory of the process; 0 for the row that keeps nothing."""
    runs: list[Run] = field(default_factory=list)


class Ablation:
    """One model whose resident weights are loaded once, for all rows."""

    def __init__(self, directory: Path, text: Sequence[int], settings: Settings) -> None:
        self.directory = directory
        self.settings = settings
        with Store(directory, settings.verify or DEFAULT_VERIFY) as store:
            self.spec = store.spec
            self.stride = store.header.stride
            self.select = choose_selector(store, settings.select)
            if self.select == "oracle":
                raise UsageError(
                    "--select oracle reads every neuron to find the active ones, so no row would"
                    " gain; leave --select out"
                )
            if self.select == "router":
                raise UsageError(
                    f"{directory}: the ablation is of neurons that are selected one by one, and"
                    " this model has experts; `flashllm bench cache` compares what keeps them"
                )
            # All of the resident file is loaded, whose bytes each row needs.
            self._sizes = replace(model_sizes(store, self.select), own_embedding=0)
            resident, self._image = store.load_resident_image(settings.direct)
        self._resident: dict[str, RawTensor] = resident
        self.weights = Weights.of(self.spec)
        self._kernels = core.open_kernels(compute_threads())
        self.window = settings.window or DEFAULT_WINDOW
        self._ids = self._cut(text)
        self._sets: dict[Path, ActiveSets] = {}
        """By the directory that the predictors are taken from."""
        for other in settings.beside:
            check_same_weights(directory, other)

    @property
    def sparse(self) -> bool:
        """Whether the model is sparse, so that there are rows below the second one."""
        return self.select != "all"

    def run(self, on_row: OnRow) -> Iterator[list[RowResult]]:
        """Runs all rows, round after round; yields the results so far after each run."""
        results = self.expected()
        self._check_memory(results)
        for number in range(self.settings.runs):
            for result in results:
                on_row(result.row, number)
                result.runs.append(self._measure(result.row))
                yield results

    def expected(self) -> list[RowResult]:
        """All rows with what they hold, read and need, before anything has run."""
        return [RowResult(row, *self._expected(row)) for row in self._rows()]

    def _cut(self, text: Sequence[int]) -> list[int]:
        needed = PROMPT_TOKENS + self.window + self.settings.tokens
        if needed > self.spec.max_positions:
            raise UsageError(
                f"--tokens {self.settings.tokens}: with {PROMPT_TOKENS} before them and a window of"
                f" {self.window} they are more than the {self.spec.max_positions} positions of"
                " this model"
            )
        if len(text) < needed:
            raise UsageError(
                f"the text has {len(text)} tokens; {needed} are needed for --tokens"
                f" {self.settings.tokens}. Give a longer --text"
            )
        return list(text[:needed])

    def _rows(self) -> list[Row]:
        threads = self.settings.io_threads or DEFAULT_IO_THREADS
        rows = table_rows(self.window, threads)
        if not self.sparse:
            return rows[:2]
        if self.settings.add:
            further = [predictors_of(directory) for directory in self.settings.beside]
            rows += added_rows(rows[-1], self._profiled(), (*ADDITIONS, *further))
        return rows

    def _profiled(self) -> Plan:
        """The plan with memory for everything and the disk's best settings."""
        return make_plan(
            self.spec,
            self._sizes,
            self._options.having(memory=1 << 60),
            find_profile(self.directory, self.settings.profile),
        )

    @property
    def _options(self) -> ModelOptions:
        return ModelOptions(
            select=self.select,
            io_threads=self.settings.io_threads,
            kv_dtype=self.settings.kv_dtype,
            verify=self.settings.verify,
            context=len(self._ids),
        )

    # Plans ----------------------------------------------------------------------------------

    def _plan(self, select: Select, ceiling_bytes: int | None, window: int | None = None) -> Plan:
        # As in the paper: a window of tokens, and nothing computed while reads are under way.
        options = self._options.having(
            memory=ceiling_bytes, select=select, policy="window", overlap="none", window=window
        )
        return make_plan(self.spec, self._sizes, options)

    def _plan_of(self, row: Row) -> Plan:
        if row.dense and not row.holds_half:
            return replace(self._plan("all", None), slots_per_layer=(0,) * self.spec.n_layers)
        if row.dense:
            # The planner pins what a ceiling leaves over: the one under which half is weights.
            least = self._plan("all", None)
            return self._plan("all", max(least.smallest_bytes, self._half_ceiling(least)))
        plan = self._plan(self.select, None, row.window or 1)
        slots = self._slots(self._sets[self._directory(row)], row.window or 1)
        return replace(plan, slots_per_layer=slots, **row.plan)

    def _half_ceiling(self, plan: Plan) -> int:
        weights = plan.split["embeddings"] + plan.split["attention"]
        return plan.smallest_bytes - weights + self.weights.total // 2

    def _directory(self, row: Row) -> Path:
        return row.directory or self.directory

    def _slots(self, sets: ActiveSets, window: int) -> tuple[int, ...]:
        least = smallest_slots(self.spec.bundles_per_layer)
        return tuple(
            min(max(needed, least), self.spec.bundles_per_layer)
            for needed in sets.slots_needed(window)
        )

    def _expected(self, row: Row) -> tuple[int, float, int]:
        """Bytes that a row keeps, that a token should read, and that the process needs."""
        weights = self.weights
        kept = weights.embeddings + weights.attention + weights.gate
        if row.dense and not row.holds_half:
            return 0, float(weights.total), 0
        if row.dense:
            plan = self._plan_of(row)
            pinned = sum(plan.slots_per_layer)
            held = kept + pinned * self.spec.bundle_bytes
            return held, float(weights.total - held), _needed_bytes(plan, self.stride)
        directory = self._directory(row)
        if directory not in self._sets:
            self._sets[directory] = self._record(row.directory)
        plan = self._plan_of(row)
        predictors = plan.split["predictors"]
        if row.directory is not None:
            predictors = read_manifest(row.directory).files[PREDICTORS_FILE].bytes
        held = kept + predictors + sum(plan.slots_per_layer) * self.stride
        read = self._sets[directory].loads(row.window) * self.spec.bundle_bytes
        return held, read, _needed_bytes(plan, self.stride)

    def _check_memory(self, rows: Sequence[RowResult]) -> None:
        """Checks all rows before anything is measured: the largest must fit."""
        largest = max(rows, key=lambda result: result.needed_bytes)
        row, needed = largest.row, largest.needed_bytes
        allowed = self._allowed()
        if needed > allowed:
            advice = "" if row.dense else " a smaller --window, or"
            raise MemoryCeilingTooSmall(
                f'of all rows "{row.title}" needs the most: {format_ceiling(needed)}, and'
                f" {allowed >> 20} MiB are allowed; give{advice} more --memory than that, since"
                " where there is more, more of the prompt is kept",
                needed,
            )

    def _allowed(self) -> int:
        """Bytes that the whole process may take."""
        # The resident weights are loaded already, and so no longer part of what is available.
        loaded = len(self._image.array()) + self._sizes.interpreter
        available = int(available_bytes() * AVAILABLE_SHARE) + loaded
        return self.settings.memory or available

    # Runs -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _decoder(self, row: Row, plan: Plan) -> Iterator[tuple[Decoder, Store]]:
        verify = self.settings.verify or DEFAULT_VERIFY
        with Store(self._directory(row), verify) as store:
            direct = self.settings.direct
            # Where all neurons are read there are no rows of single neurons to be read apart.
            apart = not row.bundled and not row.dense
            store.open_reader(direct, row.io_threads, row.gap_bytes, rows_apart=apart)
            selector = make_selector(store, plan.select, self._kernels, direct, self._resident)
            yield Decoder(store, self._resident, selector, plan, self._kernels), store

    def _record(self, directory: Path | None) -> ActiveSets:
        """The active sets of all tokens, from a run that is not counted."""
        row = Row("record", "recording", window=self.window, bundled=True, directory=directory)
        plan = self._plan(self.select, None, self.window)
        # What is selected does not depend on the slots; they only have to hold the window.
        fixed = sum(plan.split.values()) - plan.split["slots"]
        fitting = max(self._allowed() - fixed, 0) // (self.spec.n_layers * self.stride)
        n_bundles = self.spec.bundles_per_layer
        slots = (min(max(fitting, smallest_slots(n_bundles)), n_bundles),) * self.spec.n_layers
        with self._decoder(row, replace(plan, slots_per_layer=slots)) as (decoder, store):
            selector = make_selector(
                store, self.select, self._kernels, self.settings.direct, self._resident
            )
            assert selector is not None
            recorder = RecordingSelector(selector, self.spec.n_layers)
            decoder.use(recorder)
            decoder.prefill(self._ids[:PROMPT_TOKENS])
            marks = [decoder.pool.marks(layer)[0] for layer in range(self.spec.n_layers)]
            held = [np.flatnonzero(resident).astype(np.int32) for resident in marks]
            for token in self._ids[PROMPT_TOKENS:]:
                decoder.decode(token)
        return ActiveSets(recorder.sets, self.spec.bundles_per_layer, self.window, held)

    def _measure(self, row: Row) -> Run:
        with self._decoder(row, self._plan_of(row)) as (decoder, store):
            if row.dense and not row.holds_half:
                stream = ResidentStream(store, self._image, self.settings.direct)
                with contextlib.closing(stream):
                    return self._decode(row, decoder, store, stream)
            return self._decode(row, decoder, store, None)

    def _decode(
        self, row: Row, decoder: Decoder, store: Store, stream: ResidentStream | None
    ) -> Run:
        decoder.prefill(self._ids[:PROMPT_TOKENS])
        reader = store.reader.stats if stream is None else BothReaders(store, decoder, stream).stats
        meter = Meter(reader, decoder.pool.counters, decoder.clock)
        following = self._ids[PROMPT_TOKENS:]
        skipped = 1 if row.dense else self.window
        if row.dense:
            following = following[: skipped + DENSE_TOKENS]
        answers, costs = hashlib.blake2b(digest_size=16), []
        for token in following:
            if not row.dense and not row.window:
                decoder.pool.clear()
            meter.start()
            logits: NDArray[np.float32] = decoder.decode(token)
            costs.append(meter.token())
            answers.update(logits.tobytes())
        return Run(tuple(costs[skipped:]), answers.hexdigest())


def _needed_bytes(plan: Plan, stride: int) -> int:
    """Memory of the process for a plan whose slots were set afterwards."""
    return sum(plan.split.values()) - plan.split["slots"] + sum(plan.slots_per_layer) * stride


class BothReaders:
    """Adds up the counters of the readers of bundles and of resident weights."""

    def __init__(self, store: Store, decoder: Decoder, stream: ResidentStream) -> None:
        self._store = store
        self._stream = stream
        self._overlap_ns = 0
        decoder.before_layer = self._read

    def stats(self) -> dict[str, Any]:
        """The sums; time in which both were busy counts once."""
        stats: dict[str, Any] = dict(self._store.reader.stats())
        for name, value in self._stream.stats().items():
            stats[name] = stats[name] + value
        stats["busy_ns"] = stats["busy_ns"] - self._overlap_ns
        return stats

    def _read(self, layer: int) -> None:
        # A block of the layer's bundles may still be on its way, begun with the layer before.
        before_ns = self._busy_ns()
        self._stream.read(layer)
        self._overlap_ns += self._busy_ns() - before_ns

    def _busy_ns(self) -> int:
        stats: dict[str, Any] = self._store.reader.stats()
        return int(stats["busy_ns"])
