"""What lies on a device beside DRAM, under a limit of its own. Pure arithmetic.

Placed first is what every token needs whole: the resident matrices. Then keys and values, of whole
layers; then slots for bundles, of whole layers, each at least as many as the ceiling would give it
in DRAM. What does not fit stays in DRAM and is computed there. So the placement has the form of
FlexGen's policy (Sheng et al., arXiv 2303.06865, section 4.3): shares of weights, of keys and
values, and of activations on the device, which are realised by whole matrices and layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashllm.errors import UsageError
from flashllm.flash.tensor_table import (
    EMBEDDING,
    HEAD,
    POSITIONS,
    ROUTER,
    SHARED_ROUTER,
    resident_bytes,
    tensor_table,
)
from flashllm.planning.slot_allocation import least_slots
from flashllm.spec import ModelSpec
from flashllm.units import MIB, format_bytes

_TILE_BYTES = 32 * MIB
"""Rows that are decoded to f32 together, at most."""
_TILES = 6
"""Tiles that decoding takes at once: codes, numbers, scales and values of one."""
_SCORES = 3
"""Arrays of scores that attention takes at once."""
_CHUNK_TOKENS = 512
_STAGED_BYTES = 32 * MIB
"""Bundles of a round that are read to DRAM before they are copied, unless a round is larger.

A layer of OPT-6.7B needs 26 MB for a token. Each round waits for its reads, its copies and its
products, so fewer of them cost less: with 8 MiB there were four for each layer.
"""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares on the device, 0 to 1, by the letters of FlexGen's policy."""

    wg: float
    """Of all weights, those on flash included."""
    cg: float
    """Of keys and values."""
    hg: float = 0.0
    """Of activations: they stay in DRAM, where norms, selectors and the sampler are."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What lies on a device. `split` has bytes by component, within `memory_bytes`."""

    name: str
    memory_bytes: int
    smallest_bytes: int
    """With less, nothing could lie there."""
    split: dict[str, int]
    matrices: tuple[str, ...]
    """Resident matrices there, by name; a head that is the embedding too is named as a head."""
    kv_layers: int
    """The first layers have their keys and values there."""
    tile_bytes: int
    """Rows that are decoded to f32 together."""
    staging_bundles: int
    """Bundles that are read to DRAM together on their way there; as many again are prefetched."""
    requested: Shares
    """What the memory has room for, if anything could be cut anywhere."""
    realised: Shares
    slots: tuple[int, ...] = ()
    """Slots there of each layer that has bundles; 0 where they are in DRAM."""

    @property
    def slot_layers(self) -> int:
        """The first layers have their slots there."""
        return sum(slots > 0 for slots in self.slots)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a placement is made for. `kv_bytes` are those of all contexts, of all layers."""

    spec: ModelSpec
    stride: int
    select: str
    name: str
    memory_bytes: int
    kv_bytes: int
    context: int
    chunk_tokens: int | None
    block_bytes: int
    """Bundles of a prompt that are computed together."""

    def place(self) -> DevicePlan:
        """The placement without slots; `UsageError`, which names the least, where nothing fits."""
        spec, sizes = self.spec, matrix_bytes(self.spec)
        tile_bytes = min(_TILE_BYTES, max(map(_floats_bytes, _shapes(spec).values())))
        workspace = self._workspace_bytes(tile_bytes)
        smallest_bytes = workspace + min(sizes.values())
        if self.memory_bytes < smallest_bytes:
            raise UsageError(
                f"--device-memory {format_bytes(self.memory_bytes)} is too small: products on"
                f" {self.name} take {format_bytes(workspace)} of this model, and the smallest"
                f" matrix makes that {format_bytes(smallest_bytes)}, the least that is of use"
            )
        left = self.memory_bytes - workspace
        placed = []
        for name, nbytes in sizes.items():
            if nbytes <= left:
                placed.append(name)
                left -= nbytes
        layer_bytes = self.kv_bytes // spec.n_layers
        kv_layers = min(left // layer_bytes, spec.n_layers) if layer_bytes else 0
        matrices = sum(sizes[name] for name in placed)
        split = {
            "workspace": workspace,
            "matrices": matrices,
            "kv": kv_layers * layer_bytes,
            "slots": 0,
        }
        return DevicePlan(
            name=self.name,
            memory_bytes=self.memory_bytes,
            smallest_bytes=smallest_bytes,
            split=split,
            matrices=tuple(placed),
            kv_layers=kv_layers,
            tile_bytes=tile_bytes,
            staging_bundles=self.staging_bundles,
            requested=self._requested(workspace),
            realised=Shares(matrices / self._weight_bytes, kv_layers / spec.n_layers),
        )

    def with_slots(self, plan: DevicePlan, in_dram: Sequence[int], most: int) -> DevicePlan:
        """The same with slots, `in_dram` being those that each layer has there without a device.

        No layer gets more than `most`.
        """
        left = self.memory_bytes - sum(plan.split.values())
        whole = self.spec.bundles_per_layer
        wanted = [whole if self.select == "all" else max(slots, 1) for slots in in_dram]
        slots = [0] * len(wanted)
        for layer, count in enumerate(wanted):
            if count * self.stride > left:
                break
            slots[layer] = count
            left -= count * self.stride
        layers = sum(count > 0 for count in slots)
        if layers:
            more = left // self.stride // layers
            slots = [min(count + more, max(most, count)) if count else 0 for count in slots]
        split = plan.split | {"slots": sum(slots) * self.stride}
        weights = (split["matrices"] + split["slots"]) / self._weight_bytes
        realised = dataclasses.replace(plan.realised, wg=weights)
        return dataclasses.replace(plan, split=split, slots=tuple(slots), realised=realised)

    @property
    def staging_bundles(self) -> int:
        """Bundles of a round: all of a token's experts, or at least a block of summation."""
        most = max(_STAGED_BYTES // self.stride, least_slots(self.spec, self.select), 1)
        return min(most, self.spec.bundles_per_layer)

    @property
    def _slot_bytes(self) -> int:
        """Those of all bundles."""
        return self.spec.bundled_layers * self.spec.bundles_per_layer * self.stride

    @property
    def _weight_bytes(self) -> int:
        every = sum(resident_bytes(*each, self.spec) for each in tensor_table(self.spec).items())
        return every + self._slot_bytes

    def _requested(self, workspace: int) -> Shares:
        left, matrices = self.memory_bytes - workspace, sum(matrix_bytes(self.spec).values())
        on_device = min(left, matrices)
        kv = min(left - on_device, self.kv_bytes)
        slots = min(left - on_device - kv, self._slot_bytes)
        cg = kv / self.kv_bytes if self.kv_bytes else 0.0
        return Shares((on_device + slots) / self._weight_bytes, cg)

    def _workspace_bytes(self, tile_bytes: int) -> int:
        """What products take beside what lies there."""
        spec = self.spec
        tokens = self.chunk_tokens or _CHUNK_TOKENS
        widest = max(spec.d_model, spec.embed_dim, spec.n_heads * spec.head_dim)
        outputs = max(spec.d_ffn if spec.gate == "resident" else 0, widest)
        group = spec.n_heads // spec.n_kv_heads
        of_head = max(tile_bytes, 4 * self.context * spec.head_dim)
        scores = max(tile_bytes, 4 * self.context * group)
        attention = _TILES * of_head + _SCORES * scores
        rows = _TILES * tile_bytes + self.block_bytes + self.staging_bundles * self.stride
        return rows + attention + 2 * 4 * tokens * (widest + outputs)


def matrix_bytes(spec: ModelSpec) -> dict[str, int]:
    """Bytes of each resident matrix that a device may multiply, in the order of placement.

    The head comes first. Routers, norms, biases and embeddings stay in DRAM, where they are used.
    """
    return {
        name: resident_bytes(EMBEDDING if name == HEAD and spec.tied_head else name, shape, spec)
        for name, shape in _shapes(spec).items()
    }


def placed_bytes(spec: ModelSpec, names: Sequence[str]) -> int:
    """Bytes in DRAM of which matrices on the device are in the place."""
    sizes = matrix_bytes(spec)
    return sum(sizes[name] for name in names if name != HEAD or not spec.tied_head)


def _shapes(spec: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    table = tensor_table(spec)
    shapes = {HEAD: table[EMBEDDING if spec.tied_head else HEAD]}
    left_out = (ROUTER, SHARED_ROUTER)
    for name, shape in table.items():
        is_table = name in (EMBEDDING, POSITIONS, HEAD)
        if len(shape) == 2 and not is_table and not name.endswith(left_out):
            shapes[name] = shape
    return shapes


def _floats_bytes(shape: tuple[int, ...]) -> int:
    return 4 * shape[0] * shape[1]
