"""What a decoder has, made as the plan says: slots, pages, and what computes with bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.core.device_memory import DeviceMemory
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.kv_cache.layout import PageShape
from flashllm.kv_cache.page_pool import PagePool
from flashllm.model.active_set_selectors import Selector
from flashllm.model.encoded_rows import FlashTable
from flashllm.model.ffn_experts import Experts
from flashllm.model.neurons import FeedForwardWeights, Neurons
from flashllm.model.router import SelectRouted
from flashllm.planning.plan import Plan
from flashllm.system.clock import PartClock
from flashllm.weight_cache.block_stream import BlockStream
from flashllm.weight_cache.device_slots import DeviceBlock, DeviceSlots
from flashllm.weight_cache.pinned import PinnedBundles
from flashllm.weight_cache.pool import BundlePool
from flashllm.weight_cache.slot_pool import SlotPool


def largest_in_dram(resident: Mapping[str, RawTensor], plan: Plan) -> NDArray[np.uint8]:
    """The bytes of the largest resident matrix that is not on a device."""
    elsewhere = set(() if plan.device is None else plan.device.matrices)
    here = (tensor.raw for name, tensor in resident.items() if name not in elsewhere)
    return max(here, key=len)


def flash_embedding(store: Store, kernels: core.Kernels) -> FlashTable | None:
    """The embedding, where it stays on flash."""
    rows = store.embedding_rows
    return None if rows is None else FlashTable(rows, store.spec.embed_dim, kernels)


def make_bundles(
    store: Store,
    selector: Selector | None,
    kernels: core.Kernels,
    weights: Sequence[FeedForwardWeights],
    pool: BundlePool,
) -> Neurons | Experts:
    """What computes with bundles: whole experts, or the neurons of a feed-forward layer."""
    if store.spec.experts is None:
        return Neurons(store.spec, store.header.stride, kernels, weights)
    assert isinstance(selector, SelectRouted), "experts are chosen by their router alone"
    return Experts(store.spec, store.header, kernels, selector, pool.counters)


def make_kv_pool(store: Store, plan: Plan, directories: Sequence[Path]) -> PagePool | None:
    """Pages of keys and values; None where the plan gives them no limit of their own."""
    if plan.kv_pages is None:
        return None
    return PagePool(
        PageShape.of(store.spec, plan.kv_dtype), plan.kv_pages, directories, store.reader.direct,
        overlaps=plan.overlap != "none", victims=plan.kv_victims,
    )  # fmt: skip


def make_pool(
    store: Store,
    plan: Plan,
    clock: PartClock,
    kernels: core.Kernels,
    memory: DeviceMemory | None,
) -> BundlePool:
    """The pool that the plan describes: pinned bundles where every token needs all, else slots."""
    stride, bundles = store.header.stride, plan.prefill.bundles
    block_bytes = bundles * stride
    stream = BlockStream(store, block_bytes, plan.own_blocks, clock, kernels)
    device: DeviceSlots | None = None
    if memory is not None and plan.device is not None and plan.device.slot_layers:
        placed = plan.device
        slots = placed.slots[: placed.slot_layers]
        device = DeviceSlots(store, memory, kernels, slots, placed.staging_bundles)
        stream.copy = DeviceBlock(memory, kernels, placed.slot_layers, bundles, stride)
    if plan.select == "all":
        return PinnedBundles(store, plan.slots_per_layer, stream, device)
    pool = SlotPool(
        store,
        plan.slots_per_layer,
        plan.policy,
        plan.window,
        stream,
        [blocks * block_bytes for blocks in plan.lent_blocks],
        clock=clock,
        early=plan.overlap != "none",
        device=device,
        whole_blocks=plan.reads_layers_whole,
    )
    stream.held = pool
    return pool
