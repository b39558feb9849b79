"""Opens a converted model: plans first, then loads what the plan allows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from flashllm import core
from flashllm.engine import leftovers
from flashllm.engine.device_loading import (
    check_options,
    load_resident,
    open_device,
    open_device_kernels,
)
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.flash.file_loading import OnRead, ignore_read
from flashllm.flash.manifest import read_manifest
from flashllm.flash.opening_errors import opening_errors
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.skewing_file import usable_skewing
from flashllm.flash.store import Store
from flashllm.hardware.machine_profile import Profile
from flashllm.hardware.staleness import profile_for
from flashllm.model.active_set_selectors import (
    SelectAll,
    SelectGate,
    Selector,
    SelectPredicted,
)
from flashllm.model.decoder import Decoder
from flashllm.model.router import SelectRouted
from flashllm.model.tiled_matrices import tile_matrices
from flashllm.options import DEFAULT_OPTIONS, DEFAULT_VERIFY, ModelOptions, ModelOverrides
from flashllm.planning.advisor import Scenario
from flashllm.planning.model_facts import (
    choose_selector,
    converted_sizes,
    usual_ceiling,
)
from flashllm.planning.plan import Plan, make_plan
from flashllm.planning.sizes import Sizes
from flashllm.planning.ways_to_read import RESERVE_BYTES
from flashllm.system import malloc, right_of_way
from flashllm.system.allocation import allocation_errors
from flashllm.system.library_pages import drop_clean_pages
from flashllm.system.memory import rss_bytes
from flashllm.system.memory_limit import container_limit_bytes
from flashllm.system.paths import cache_dir
from flashllm.system.processors import compute_threads
from flashllm.units import MIB

OnLoading = Callable[[int, int], None]
"""Called with the bytes that were read of a model's files while it is opened, and with all."""
MakeDecoder = Callable[
    [Store, Mapping[str, RawTensor], Selector | None, Plan, core.Kernels, Sequence[Path]],
    Decoder,
]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a pipeline: its layers, and what makes their decoder."""

    layers: range
    make_decoder: MakeDecoder


@contextlib.contextmanager
def open_decoder(
    directory: str | os.PathLike[str],
    **overrides: Unpack[ModelOverrides],
) -> Iterator[Decoder]:
    """A decoder for forward passes over a converted model, under the ceiling `memory`.

    Without one it takes as little memory as possible; `application_bytes` of the ceiling are left
    to the caller. For recording and evaluation, which compute whole texts and keep no window.
    `Decoder.choose` and mode selected use the selector; if none is given "all", or the router.
    """
    options = ModelOptions(window=1).having(**overrides)
    if options.select is None and read_manifest(Path(directory)).spec.experts is None:
        options = options.having(select="all")
    decoder, _, store = load_decoder(Path(directory), options, least=options.memory is None)
    with allocation_errors("computing"), store, contextlib.closing(decoder):
        yield decoder


def load_decoder(
    directory: Path,
    options: ModelOptions = DEFAULT_OPTIONS,
    *,
    least: bool = False,
    **overrides: Unpack[ModelOverrides],
) -> tuple[Decoder, Plan, Store]:
    """Open a directory; the caller closes the store. `least` asks for the smallest plan."""
    options = options.having(**overrides)
    return load_planned(directory, options, profile_for(directory, options), least=least)


def load_planned(
    directory: Path,
    options: ModelOptions,
    profile: Profile | None,
    *,
    least: bool = False,
    on_loading: OnLoading | None = None,
    stage: Stage | None = None,
    before_weights: Callable[[], None] = lambda: None,
) -> tuple[Decoder, Plan, Store]:
    """Like `load_decoder`, with a profile that was already found; of a stage only its layers.

    `before_weights` is called when the plan is made and its memory is not taken yet.
    """
    with (
        opening_errors(directory),
        right_of_way.taken(),
        allocation_errors(f"opening {directory}"),
    ):
        return _load(directory, options, profile, least, on_loading, stage, before_weights)


def _load(
    directory: Path,
    options: ModelOptions,
    profile: Profile | None,
    least: bool,
    on_loading: OnLoading | None,
    stage: Stage | None,
    before_weights: Callable[[], None],
) -> tuple[Decoder, Plan, Store]:
    malloc.keep_heap_flat()
    # Who keeps an error keeps its frames, and what is open in them.
    with contextlib.ExitStack() as opened:
        check_options(options, stage is not None)
        device = None
        if options.device is not None:
            device, options = open_device(options)
        layers = None if stage is None else stage.layers
        store = Store(directory, options.verify or DEFAULT_VERIFY, layers)
        opened.callback(store.close)
        chosen = choose_selector(store, options.select)
        sizes = replace(model_sizes(store, chosen), application=options.application_bytes)
        plan = _plan(store, sizes, options.having(select=chosen), profile, least)
        direct = options.direct
        store.check_small_files()
        before_weights()
        store.open_reader(direct, plan.io_threads, plan.gap_bytes)
        on_read = _counting(store, chosen, on_loading)
        if device is None or plan.device is None:
            kernels = core.open_kernels(compute_threads(), fast=plan.arithmetic == "fast")
            opened.callback(kernels.close)
            leaves = plan.embedding_on_flash
            loaded = store.load_resident(direct, on_read, leaves_embedding=leaves)
            resident = tile_matrices(loaded, kernels)
        else:
            kernels = open_device_kernels(store, device, plan.device, compute_threads())
            opened.callback(kernels.close)
            resident = load_resident(store, device, plan.device, direct, on_read)
        selector = make_selector(store, chosen, kernels, direct, resident, on_read)
        directories = _kv_directories(directory, options)
        if stage is not None:
            decoder = stage.make_decoder(store, resident, selector, plan, kernels, directories)
            opened.pop_all()
            return decoder, plan, store
        skewing, problem = None, ""
        if plan.kv_selection.policy in ("infinigen", "specache"):
            skewing, problem = usable_skewing(directory, store.spec)
        decoder = Decoder(
            store, resident, selector, plan, kernels, directories, skewing, device=device
        )
        decoder.skewing_problem = problem
        opened.pop_all()
        return decoder, plan, store


def _kv_directories(directory: Path, options: ModelOptions) -> list[Path]:
    """Where keys and values on flash may be, the first choice first."""
    if options.kv_dir is not None:
        return [Path(options.kv_dir)]
    return [directory, cache_dir()]


def _plan(
    store: Store, sizes: Sizes, options: ModelOptions, profile: Profile | None, least: bool
) -> Plan:
    """The plan for a ceiling: the one asked for, or the usual one of this machine or container."""
    if options.memory is not None or least:
        return make_plan(store.spec, sizes, options, profile)
    usual = usual_ceiling(sizes.interpreter, options.application_bytes)
    try:
        return make_plan(store.spec, sizes, options.having(memory=usual), profile)
    except MemoryCeilingTooSmall as problem:
        limit = container_limit_bytes()
        if limit is None or limit >= problem.smallest_bytes:
            raise
        words = f"{problem}. The limit of this container is {limit / MIB:.0f} MiB: raise it first"
        raise MemoryCeilingTooSmall(words, problem.smallest_bytes) from None


def _counting(store: Store, select: str, on_loading: OnLoading | None) -> OnRead:
    """Tells `on_loading` how much of what is read while opening is there."""
    if on_loading is None:
        return ignore_read
    total = store.resident_bytes()
    total += store.predictor_bytes() if select == "predicted" else 0
    done = 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        on_loading(min(done, total), total)

    on_loading(0, total)
    return count


def scenario_of(directory: Path, options: ModelOptions, profile: Profile | None) -> Scenario:
    """What a plan of a converted model is made of; its activity is what was recorded, if it was."""
    with opening_errors(directory), Store(directory) as store:
        select = choose_selector(store, options.select)
        sizes = model_sizes(store, select)
        return Scenario(
            store.spec, sizes, sizes.activity, options.having(select=select), profile, True
        )


def make_selector(
    store: Store,
    select: str,
    kernels: core.Kernels,
    direct: bool,
    resident: Mapping[str, RawTensor],
    on_read: OnRead = ignore_read,
) -> Selector | None:
    """The selector of one of the names in SELECTORS; None for the oracle."""
    if select == "router":
        return SelectRouted(resident, store.spec, kernels)
    if select == "all":
        return SelectAll(store.header.bundles_per_layer)
    if select == "gate":
        return SelectGate()
    if select == "oracle":
        return None
    tensors: dict[str, RawTensor] | None = store.load_predictors(direct, on_read)
    assert tensors is not None
    return SelectPredicted(tensors, store.spec, kernels)


def interpreter_bytes() -> int:
    """Resident memory of this process before a model is loaded, without what only imports needed.

    That is given back (`system.library_pages`), but no more of it is counted out than the reserve
    stands for: the process had it, and no ceiling is below that.
    """
    started_bytes = rss_bytes()
    drop_clean_pages()
    leftovers.measured()
    return max(rss_bytes(), started_bytes - RESERVE_BYTES)


def model_sizes(store: Store, select: str) -> Sizes:
    """The sizes that `make_plan` needs, for a converted model that this process will run."""
    return converted_sizes(store, select, interpreter_bytes() - leftovers.left_bytes())
