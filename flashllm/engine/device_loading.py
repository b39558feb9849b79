"""Opens a device for a model, and loads there what the plan places on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flashllm import core
from flashllm.errors import UsageError
from flashllm.flash.file_loading import OnRead
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.flash.tensor_table import EMBEDDING, HEAD, tensor_table
from flashllm.options import ModelOptions
from flashllm.planning.device_plan import DevicePlan

if TYPE_CHECKING:
    from flashllm.device.memory import TorchMemory


def open_device(options: ModelOptions) -> tuple[TorchMemory, ModelOptions]:
    """The memory of `options.device`, and options that say how much of it there is to take.

    Before anything is measured of this process: a driver takes memory of it. `UsageError` for a
    device that does not exist or does not work.
    """
    from flashllm.device import opening

    assert options.device is not None
    device = opening.find_device(options.device)
    nbytes = options.device_memory
    if nbytes is None:
        nbytes = opening.free_bytes(options.device, device)
    return opening.open_memory(device, nbytes), options.having(device_memory=nbytes)


def open_device_kernels(
    store: Store, memory: TorchMemory, plan: DevicePlan, threads: int
) -> core.Kernels:
    """Kernels that multiply rows where they lie, checked for this model's encodings."""
    from flashllm.device.kernels import TorchKernels
    from flashllm.device.opening import check_products

    kernels = TorchKernels(threads, memory, plan.tile_bytes)
    try:
        check_products(kernels, {store.spec.dtype, store.spec.matrix_dtype})
    except BaseException:
        kernels.close()
        raise
    return kernels


def load_resident(
    store: Store, memory: TorchMemory, plan: DevicePlan, direct: bool, on_read: OnRead
) -> dict[str, RawTensor]:
    """All resident tensors, each where the plan says; a layer of them at a time is in both places.

    A head that is the embedding too is there under a name of its own.
    """
    sources = {
        EMBEDDING if name == HEAD and store.spec.tied_head else name: name for name in plan.matrices
    }
    tensors: dict[str, RawTensor] = {}
    groups = list(_groups(list(sources)))
    for group in store.load_resident_groups(groups, direct, on_read):
        for source, tensor in group.items():
            there = memory.place(tensor.raw)
            tensors[sources[source]] = RawTensor(there, tensor.dtype, tensor.shape)
    here = [name for name in tensor_table(store.spec) if name not in plan.matrices]
    for group in store.load_resident_groups([here], direct, on_read):
        tensors |= group
    return tensors


def check_options(options: ModelOptions, is_stage: bool) -> None:
    """`UsageError` for what a device cannot be part of."""
    if options.device is not None and is_stage:
        raise UsageError("--device: a model in stages has none; leave --stages out")


def _groups(names: list[str]) -> Iterator[list[str]]:
    """Names of one layer together."""
    for _, group in itertools.groupby(names, key=lambda name: name.split(".")[:2]):
        yield list(group)
