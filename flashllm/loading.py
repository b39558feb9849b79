"""Opening a converted model: plan first, then load what the plan has room for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from flashllm.accounting import rss_bytes
from flashllm.errors import UnsupportedModel, UsageError
from flashllm.flash import core
from flashllm.flash.activity import Activity, recorded
from flashllm.flash.layout import read_tensor_index
from flashllm.flash.manifest import PREDICTORS_FILE, RESIDENT_FILE
from flashllm.flash.plan import Plan, Sizes, make_plan
from flashllm.flash.profile import Profile, find, load
from flashllm.flash.staleness import for_this_machine
from flashllm.flash.store import RawTensor, Store
from flashllm.model.decoder import Decoder
from flashllm.model.select import SELECTORS, SelectAll, SelectGate, Selector, SelectPredicted
from flashllm.spec import ModelSpec

AVAILABLE_SHARE = 0.75
"""Without a ceiling, the part of the memory available now that a model may take."""
KERNEL_THREADS = torch.get_num_threads()
"""Threads that compute; asked for before anything is decoded, which leaves torch itself one."""


@contextlib.contextmanager
def open_decoder(
    directory: str | os.PathLike[str],
    select: str | None = None,
    context: int | None = None,
    kv_dtype: str | None = None,
) -> Iterator[Decoder]:
    """A decoder for forward passes over a converted model, in as little memory as will do.

    For recording and evaluation, which send whole texts through and keep no window. `select` is
    what `Decoder.choose` and mode selected go by; "all" without it. `context` is in tokens, and
    `kv_dtype` the encoding of keys and values.
    """
    decoder, _, store = load_decoder(
        Path(directory),
        select=select or "all",
        window=1,
        context=context,
        kv_dtype=kv_dtype,
        least=True,
    )
    with store:
        yield decoder


def load_decoder(
    directory: Path,
    *,
    memory: int | None = None,
    select: str | None = None,
    policy: str | None = None,
    window: int | None = None,
    io_threads: int | None = None,
    direct: bool = True,
    context: int | None = None,
    kv_dtype: str | None = None,
    least: bool = False,
    profile: Path | None = None,
    overlap: str | None = None,
) -> tuple[Decoder, Plan, Store]:
    """Open a directory; the caller closes the store. `least` is for the smallest plan there is.

    `profile` is a file to plan with instead of the profile that is kept of this device.
    """
    store = Store(directory)
    try:
        if store.spec.neurons_per_bundle != 1:
            raise UnsupportedModel(
                f"{directory}: {store.spec.neurons_per_bundle} neurons a bundle; this version runs"
                " models whose bundles are single neurons"
            )
        chosen = choose_selector(store, select)
        sizes = model_sizes(store, chosen)
        ceiling_bytes = memory
        if ceiling_bytes is None and not least:
            available_bytes = psutil.virtual_memory().available
            ceiling_bytes = sizes.interpreter + int(available_bytes * AVAILABLE_SHARE)
        plan = make_plan(
            store.spec,
            sizes,
            ceiling_bytes,
            select=chosen,
            policy=policy,
            window=window,
            io_threads=io_threads,
            context=context,
            kv_dtype=kv_dtype,
            profile=find_profile(directory, profile) if direct or profile else None,
            overlap=overlap,
        )
        store.open_reader(direct, plan.io_threads, plan.gap_bytes)
        kernels = core.open_kernels(KERNEL_THREADS)
        resident = store.load_resident(direct)
        selector = make_selector(store, chosen, kernels, direct)
        return Decoder(store, resident, selector, plan, kernels), plan, store
    except BaseException:
        store.close()
        raise


def choose_selector(store: Store, select: str | None) -> str:
    """The selector asked for, or the best that the model has; `UsageError` where it has none."""
    spec, where = store.spec, store.directory
    has_predictors = PREDICTORS_FILE in store.manifest.files
    has_gate = spec.gate == "resident" and spec.sparse
    if select is None:
        if has_predictors:
            return "predicted"
        return "gate" if has_gate else "all"
    check_selector(select, spec, has_predictors, where)
    return select


def check_selector(select: str, spec: ModelSpec, has_predictors: bool, where: Path) -> None:
    """`UsageError` for a selector that there is not, or that a model of this shape cannot have."""
    has_gate = spec.gate == "resident" and spec.sparse
    if select not in SELECTORS:
        raise UsageError(f"--select {select}: expected one of {', '.join(SELECTORS)}")
    if select != "all" and not spec.sparse:
        raise UsageError(
            f"--select {select}: the neurons of {where} are never zero (its activation is"
            f" {spec.activation}), so all of them are needed; use --select all"
        )
    if select == "gate" and not has_gate:
        raise UsageError(f"--select gate: {where} has no resident gate; use --select all")
    if select == "predicted" and not has_predictors:
        advice = "use --select gate, which is exact" if has_gate else (
            "convert it with --predictors train, or use --select all"
        )  # fmt: skip
        raise UsageError(f"--select predicted: {where} has no predictors; {advice}")


def make_selector(
    store: Store, select: str, kernels: core.Kernels, direct: bool
) -> Selector | None:
    """What `Decoder` selects by, for one of the names in SELECTORS; None for the oracle."""
    if select == "all":
        return SelectAll(store.header.bundles_per_layer)
    if select == "gate":
        return SelectGate()
    if select == "oracle":
        return None
    tensors: dict[str, RawTensor] | None = store.load_predictors(direct)
    assert tensors is not None
    return SelectPredicted(tensors, store.spec, kernels)


def interpreter_bytes() -> int:
    """Resident memory of this process as it is before a model is loaded."""
    # The libraries under torch allocate at their first use: let that be part of what is measured.
    x = torch.ones(64, 64)
    torch.nn.functional.layer_norm(torch.softmax(x @ x, -1), (64,))
    torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
    return rss_bytes()


def model_sizes(store: Store, select: str) -> Sizes:
    """What `make_plan` needs to know of a converted model that is run with a selector."""
    index = read_tensor_index(store.directory / RESIDENT_FILE)
    embeddings = sum(t.nbytes for name, t in index.items() if name.startswith("embed."))
    return Sizes(
        interpreter=interpreter_bytes(),
        embeddings=embeddings,
        attention=store.file_bytes(RESIDENT_FILE) - embeddings,
        predictors=store.file_bytes(PREDICTORS_FILE),
        stride=store.header.stride,
        predictor_dtype=store.predictor_dtype() or "f16",
        activity=recorded_activity(store, select),
    )


def recorded_activity(store: Store, select: str) -> Activity | None:
    """What was recorded of a converted model's neurons, for a selector; None where nothing was."""
    values = store.load_activity()
    if values is None or select == "all":
        return None
    return recorded(values, select, store.spec, str(store.directory))


def find_profile(directory: Path, file: Path | None = None) -> Profile | None:
    """The profile in a file, or else the one that is kept of the device that `directory` is on.

    `ProfileError` where the file is none. The kept one is no setting: it is left out where bad, and
    so are its rates of memory and kernels where they are another machine's (`flash.staleness`).
    """
    if file is not None:
        return load(file)
    kept = find(directory)
    return kept and for_this_machine(kept)
