"""Opening a converted model: plan first, then load what the plan has room for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.hardware.staleness import find_profile
from flashllm.model.active_set_selectors import (
    SelectAll,
    SelectGate,
    Selector,
    SelectPredicted,
)
from flashllm.model.decoder import Decoder
from flashllm.planning.model_facts import (
    check_runnable,
    choose_selector,
    converted_sizes,
    usual_ceiling,
)
from flashllm.planning.plan import Plan, Sizes, make_plan
from flashllm.system.memory import rss_bytes

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
    application_bytes: int = 0,
) -> tuple[Decoder, Plan, Store]:
    """Open a directory; the caller closes the store. `least` is for the smallest plan there is.

    `profile` is a file to plan with instead of the profile that is kept of this device;
    `application_bytes` of the ceiling are left to a process beside this one.
    """
    store = Store(directory)
    try:
        check_runnable(store)
        chosen = choose_selector(store, select)
        sizes = replace(model_sizes(store, chosen), application=application_bytes)
        ceiling_bytes = memory
        if ceiling_bytes is None and not least:
            ceiling_bytes = usual_ceiling(sizes.interpreter) + application_bytes
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
    """What `make_plan` needs to know of a converted model that this process is to run."""
    return converted_sizes(store, select, interpreter_bytes())
