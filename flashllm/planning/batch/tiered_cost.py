"""FlexGen's cost model: a block on a machine with a device, DRAM and flash.

Source: arXiv 2303.06865, A.3. `a3` is that to the letter. `overlapped`, the default, is A.3 where
what it leaves out is added: queries, keys and values that go to the CPU for its attention, and keys
and values that come from it where the device computes attention (section 4.2). `serialised` is how
its authors' program estimates: what comes to the device waits for flash. `sequential` has nothing
overlap. Memory is that of A.3 in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flashllm.planning.batch.block_cost import BlockCost, MemoryNeed, Phase
from flashllm.planning.batch.machine import TieredMachine
from flashllm.planning.batch.placement import Affine, affine, shares
from flashllm.planning.batch.policy import Block, Workload
from flashllm.planning.batch.shape import F16_BYTES, BatchShape

COST_MODELS: Final = ("overlapped", "serialised", "sequential", "a3")
GROUP_BITS: Final = 4 + 2 * 16 / 64
"""Of a value in 4 bits, in groups of 64 that have a minimum and a scale of 16 bits each."""
COMPRESSED: Final = GROUP_BITS / 16

_TO_DEVICE = ("weights to device", "activations to device", "kv to device")
_TO_DRAM = ("kv to DRAM", "activations to DRAM", "attention inputs to DRAM")
_FROM_FLASH = ("weights from flash", "kv from flash", "activations from flash")
_TO_FLASH = ("kv to flash", "activations to flash")
_COMPUTE = ("products", "device attention", "CPU attention")
_LANES: Final[Mapping[str, tuple[str, ...]]] = {
    "DRAM to device": _TO_DEVICE,
    "device to DRAM": _TO_DRAM,
    "flash to DRAM": _FROM_FLASH,
    "DRAM to flash": _TO_FLASH,
    "compute": _COMPUTE,
}


@dataclass(frozen=True, slots=True)
class TieredModel:
    """How costs of a block are computed."""

    shape: BatchShape
    machine: TieredMachine
    work: Workload
    compress: bool = False
    """Whether weights, keys and values have 4 bits wherever they lie."""
    delegated: bool = True
    """Whether the CPU computes attention to what is not on the device, where that lies."""
    cost_model: str = "overlapped"

    def cost(self, block: Block) -> BlockCost:
        """The costs of a block of that size."""
        steps = self.shape.n_layers * (self.work.new_tokens - 1)
        barred = {}
        if self.cost_model == "serialised":
            barred["hd"] = "activations are never on flash in the cost model `serialised`"
        return BlockCost(
            block=block,
            new_tokens=self.work.new_tokens,
            prefill=self._phase(self._prefill(block.rows), self.shape.n_layers, decodes=False),
            decode=self._phase(self._decode(block.rows), steps, decodes=True),
            needs=tuple(self._needs(block)),
            limit_bytes=self.machine.limit_bytes,
            barred=barred,
        )

    @property
    def large_batches_are_faster(self) -> bool:
        """The paper's times depend on the rows of a block alone."""
        return False

    @property
    def _ratio(self) -> float:
        return COMPRESSED if self.compress else 1.0

    @property
    def _weight_bytes(self) -> float:
        """W: of a layer."""
        return self.shape.layer_bytes * self._ratio

    @property
    def _kv_bytes(self) -> float:
        """Of a token in a layer: 4 h1."""
        return self.shape.kv_bytes * self._ratio

    def _phase(self, parts: dict[str, Affine], steps: int, *, decodes: bool) -> Phase:
        lanes = dict(_LANES)
        if self.cost_model == "sequential":
            lanes = {"everything": tuple(parts)}
        elif self.cost_model == "serialised" and decodes:
            others = [lane for lane in _LANES if lane != "DRAM to device"]
            lanes = {f"DRAM to device, then {one}": _TO_DEVICE + _LANES[one] for one in others}
        elif self.cost_model == "serialised":
            lanes = {
                "flash to DRAM, then to device": _TO_DEVICE + _FROM_FLASH,
                "device to DRAM, then to flash": _TO_DRAM + _TO_FLASH,
                "compute": _COMPUTE,
            }
        lanes = {lane: tuple(n for n in names if n in parts) for lane, names in lanes.items()}
        return Phase(parts, lanes, steps)

    def _prefill(self, rows: int) -> dict[str, Affine]:
        """Seconds of a layer for the prompts of all rows, by part."""
        _, wc, wd, _, cc, cd, _, hc, hd = shares()
        shape, machine, prompt = self.shape, self.machine, self.work.prompt_tokens
        hidden = F16_BYTES * prompt * shape.d_model * rows
        kv = self._kv_bytes * (prompt + 1) * rows
        attention = shape.attention_flops(prompt) * prompt * rows
        products = rows * prompt * shape.token_flops
        to_device, to_dram = (
            machine.dram_to_device_bytes_per_second,
            machine.device_to_dram_bytes_per_second,
        )
        read, write = machine.flash_read_bytes_per_second, machine.flash_write_bytes_per_second
        return {
            "weights to device": (wc + wd) * self._weight_bytes / to_device,
            "activations to device": (hc + hd) * hidden / to_device,
            "kv to DRAM": (cc + cd) * kv / machine.kv_to_dram,
            "activations to DRAM": (hc + hd) * hidden / to_dram,
            "weights from flash": wd * self._weight_bytes / read,
            "activations from flash": hd * hidden / read,
            "kv to flash": cd * kv / machine.kv_write_prefill,
            "activations to flash": hd * hidden / write,
            "products": affine(products / machine.device_flops_per_second),
            "device attention": affine(attention / machine.device_attention_flops_per_second),
        }

    def _decode(self, rows: int) -> dict[str, Affine]:
        """Seconds of a layer for one more token of all rows, by part."""
        _, wc, wd, cg, cc, cd, _, hc, hd = shares()
        shape, machine = self.shape, self.machine
        seen = self.work.prompt_tokens + self.work.new_tokens / 2
        hidden = F16_BYTES * shape.d_model * rows
        kv = self._kv_bytes * rows
        attention = shape.attention_flops(seen) * rows
        to_device, to_dram = (
            machine.dram_to_device_bytes_per_second,
            machine.device_to_dram_bytes_per_second,
        )
        read, write = machine.flash_read_bytes_per_second, machine.flash_write_bytes_per_second
        delegated = self.delegated or self.cost_model == "a3"
        on_device = cg if delegated else cg + cc + cd
        parts = {
            "weights to device": (wc + wd) * self._weight_bytes / to_device,
            "activations to device": (hc + hd) * hidden / to_device,
            "activations to DRAM": (hc + hd) * hidden / to_dram,
            "weights from flash": wd * self._weight_bytes / read,
            "kv from flash": cd * kv * seen / machine.kv_read,
            "activations from flash": hd * hidden / read,
            "kv to flash": cd * kv / machine.kv_write_decode,
            "activations to flash": hd * hidden / write,
            "products": affine(rows * shape.token_flops / machine.decode_flops),
            "device attention": on_device * attention / machine.decode_attention_flops,
        }
        if delegated:
            parts["CPU attention"] = (cc + cd) * attention / machine.cpu_attention_flops_per_second
        if self.cost_model == "a3":
            return parts
        if delegated:
            widths = shape.q_width + 2 * shape.kv_width
            inputs = F16_BYTES * widths * rows
            parts["attention inputs to DRAM"] = (cc + cd) * inputs / to_dram
        else:
            parts["kv to device"] = (cc + cd) * kv * seen / to_device
            parts["kv to DRAM"] = (cc + cd) * kv / machine.kv_to_dram
        return parts

    def _needs(self, block: Block) -> list[MemoryNeed]:
        """What each tier holds: what lives there, and what is worked on."""
        wg, wc, wd, cg, cc, cd, hg, hc, hd = shares()
        layers, d_model = self.shape.n_layers, self.shape.d_model
        prompt, tokens = self.work.prompt_tokens, self.work.prompt_tokens + self.work.new_tokens
        batch, rows = block.batch_rows, block.rows
        layer = self._weight_bytes
        weights = layer * layers
        kv = self._kv_bytes * tokens * rows * layers
        hidden, hidden_batch = (F16_BYTES * d_model * n for n in (rows, batch))
        needs: list[MemoryNeed] = []
        for phase, length in (("prefill", prompt), ("decode", 1)):
            home = wg * weights + hg * (hidden * length) + cg * kv
            work = (1 - wg) * (2 * layer) + (1 - hg) * (prompt * hidden_batch)
            seen = prompt if phase == "prefill" else tokens
            needs += [
                MemoryNeed("device", phase, home + work + buffers)
                for buffers in self._buffers(batch, length, seen)
            ]
        prefill = wc * weights + hc * (hidden * prompt) + cc * kv
        prefill += (1 - wg) * layer + (1 - hg) * (prompt * hidden_batch)
        decode = wc * weights + hc * hidden + cc * kv + wd * layer + hd * (2 * hidden_batch)
        decode += cd * (2 * self._kv_bytes * tokens * batch)
        decode += F16_BYTES * self.shape.n_heads * tokens * batch + hidden_batch
        flash = wd * weights + hd * (hidden * prompt) + cd * kv
        needs += [
            MemoryNeed("dram", "prefill", prefill),
            MemoryNeed("dram", "decode", decode),
            *(MemoryNeed("flash", phase, flash) for phase in ("prefill", "decode")),
        ]
        return needs

    def _buffers(self, batch: int, length: int, seen: int) -> list[Affine]:
        """Intermediates of a batch on the device, of which one kind is there at a time."""
        cg = shares()[3]
        shape = self.shape
        scores = F16_BYTES * shape.n_heads * length * seen
        queries = F16_BYTES * length * shape.q_width
        keys = F16_BYTES * seen * shape.kv_width
        hidden = F16_BYTES * length * shape.d_model
        qkv = hidden + queries + 2 * F16_BYTES * length * shape.kv_width
        return [
            affine(batch * qkv),
            # Scores from queries and keys, then outputs from scores and values: as much.
            cg * (batch * (queries + keys + scores)),
            affine(batch * 2 * hidden),
            affine(batch * F16_BYTES * length * (shape.d_model + shape.ffn_width)),
        ]
