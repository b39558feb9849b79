"""What a token costs whose neurons are in slots on a device, and what loading whole layers costs.

    python -m benchmarks.device MODEL --device cuda [--shares 1,1/2,1/4] [--tokens 24]

This is the paper's second half (arXiv 2312.11514, section 4): weights are on flash, or in DRAM
(`--dram`, a copy of the model on a file system in memory), and what a token needs moves on to a
GPU. Printed are, for
slots on the device for each share of the neurons, the milliseconds of a token by part. What
copying to the device takes is measured by itself, in a run that waits for each copy; in the others
copies run beside the rest. Beside them stands the naive way: every layer's feed-forward weights are
read and copied for each token, by the same reader, staging and products. Slots are measured with
staging that is locked in DRAM, and one share with staging that is not.

`bound` is the larger of two times: that of a token's reads at the rate of long reads, and that of
its copies at the rate of the fastest copy, both measured in the same run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm import core
from flashllm.bench.header import run_header
from flashllm.bench.prompt.runs import random_ids
from flashllm.cli.shared.flags import argument
from flashllm.device.kernels import TorchKernels
from flashllm.device.memory import TorchMemory
from flashllm.device.opening import find_device, open_memory
from flashllm.dtypes import row_bytes
from flashllm.engine.loading import scenario_of
from flashllm.engine.local import Model, open_model
from flashllm.errors import FlashllmError, MemoryCeilingTooSmall, UsageError
from flashllm.flash.store import Store
from flashllm.hardware.staleness import profile_for
from flashllm.options import ModelOptions, Overlap
from flashllm.planning.plan import Plan, make_plan, smallest_ceiling
from flashllm.settings.values import parse_device, parse_positive
from flashllm.system.clock import PARTS
from flashllm.units import GIB, MIB, format_bytes

NAME = "device"
PROMPT_TOKENS, TOKENS, WARM = 16, 24, 8
CONTEXT = 256
_ROOM = MIB
"""Above the smallest ceiling: a layer has on the device at least what it would have in DRAM."""
_COPIES = (64 << 10, 1 << 20, 8 << 20, 64 << 20)
_ROUND_BYTES, _BLOCK_ROWS = 8 * MIB, 64
_IO_THREADS = 32


@dataclass(slots=True)
class Row:
    """One way to have a token's weights on the device; times are ns, of a token."""

    name: str
    share: float
    """Of the neurons, those that have a slot on the device."""
    ns: float
    parts_ns: dict[str, float]
    copy_ns: float
    """Copies to the device, measured with a wait for each; not a part of `ns`."""
    bytes_read: float
    bytes_up: float
    pinned: bool
    bound_ns: float = 0.0
    device: dict[str, Any] = field(default_factory=dict)


def parse_shares(text: str) -> list[Fraction]:
    """Shares of the neurons, such as 1,1/2,1/4."""
    try:
        shares = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{text!r} is no list of shares; write 1,1/2,1/4") from None
    if not all(0 < share <= 1 for share in shares):
        raise UsageError(f"{text!r}: a share is above 0 and at most 1")
    return shares


def options_for(
    model: Path, device: str, share: Fraction, overlap: Overlap = "none"
) -> ModelOptions:
    """With slots on the device for a share of all neurons, and little in DRAM."""
    options = ModelOptions(context=CONTEXT, device=device, device_memory=1 << 50, overlap=overlap)
    profile = profile_for(model, options)
    scenario = scenario_of(model, options, profile)
    options = options.having(select=scenario.options.select)

    def plan(**changed: Any) -> Plan:
        asked = options.having(**changed)
        least = smallest_ceiling(scenario.spec, scenario.sizes, asked, profile) + _ROOM
        return make_plan(scenario.spec, scenario.sizes, asked.having(memory=least), profile)

    everything = plan().device
    assert everything is not None
    sizes = dict(everything.split)
    nbytes = sum(sizes.values()) - sizes["slots"] + int(sizes["slots"] * share)
    found = plan(device_memory=nbytes)
    assert found.device is not None
    if found.device.slot_layers < scenario.spec.bundled_layers:
        raise UsageError(f"{share} of the neurons leaves some layers without slots on {device}")
    return options.having(device_memory=nbytes, memory=found.ceiling_bytes)


def measure_slots(
    options: argparse.Namespace, share: Fraction, *, in_dram: bool = False, pinned: bool = True
) -> Row:
    """Slots on the device for a share of the neurons; the rest comes from flash, or from DRAM."""
    model = options.dram if in_dram else options.model
    asked = options_for(model, options.device, share, options.overlap)
    runs = []
    for waits in (False, True):
        with contextlib.ExitStack() as patches:
            copies = patches.enter_context(_copies_timed()) if waits else [0, 0]
            if not pinned:
                patches.enter_context(_without_pinning())
            runs.append((_run(model, options.tokens, asked), copies))
    (plain, (nothing, _)), (_, (copy_ns, calls)) = runs
    assert nothing == 0
    name = "slots, rest in DRAM" if in_dram else "slots, rest on flash"
    return Row(
        name=name,
        share=plain["slots"],
        ns=plain["ns"],
        parts_ns=plain["parts_ns"],
        copy_ns=copy_ns / plain["tokens_timed"],
        bytes_read=plain["bytes_read"],
        bytes_up=plain["bytes_up"],
        pinned=pinned and plain["report"]["pin_problem"] is None,
        device=plain["report"] | {"copies": calls},
    )


def _run(directory: Path, count: int, asked: ModelOptions) -> dict[str, Any]:
    """Tokens of a text after its first ones: a model's own answer would say the same on and on."""
    with _opened(directory, asked) as model:
        spec, placed, decoder = model.info.spec, model.plan.device, model.decoder
        assert placed is not None
        ids = random_ids(spec.vocab_size)
        decoder.prefill(list(itertools.islice(ids, PROMPT_TOKENS)))
        for token in itertools.islice(ids, WARM):
            decoder.decode(token)
        _TIMED.clear()
        up, read = _bytes_up(model), model.reader_stats()["bytes_read"]
        walls, parts = [], []
        for token in itertools.islice(ids, count):
            begin = time.perf_counter_ns()
            decoder.clock.start()
            decoder.decode(token)
            parts.append(decoder.clock.stop())
            walls.append(time.perf_counter_ns() - begin)
        bundles = spec.bundled_layers * spec.bundles_per_layer
        report = model.device_report()
        assert report is not None
        return {
            "ns": statistics.median(walls),
            "parts_ns": {part: statistics.median(one[part] for one in parts) for part in parts[0]},
            "bytes_read": (model.reader_stats()["bytes_read"] - read) / count,
            "bytes_up": (_bytes_up(model) - up) / count,
            "slots": sum(placed.slots) / bundles,
            "tokens_timed": count,
            "report": {
                name: report[name]
                for name in ("memory_bytes", "split", "slots", "kv_layers", "bytes_allocated",
                             "bytes_reserved_peak", "pin_problem")
            },
        }  # fmt: skip


def _opened(directory: Path, asked: ModelOptions) -> Model:
    """The model; the device's own libraries may have taken DRAM since its ceiling was planned."""
    try:
        return open_model(directory, asked)
    except MemoryCeilingTooSmall as error:
        return open_model(directory, asked.having(memory=error.smallest_bytes + _ROOM))


def _bytes_up(model: Any) -> int:
    return int(model.device_report()["bytes_to_device"])


class _Timed:
    """Nanoseconds and number of copies, from when it was cleared."""

    def __init__(self) -> None:
        self.values = [0, 0]

    def clear(self) -> None:
        self.values[:] = [0, 0]


_TIMED = _Timed()


@contextlib.contextmanager
def _copies_timed() -> Iterator[list[int]]:
    """Each copy of rows to the device is waited for and timed."""
    copy_rows = TorchKernels.copy_rows

    def timed(self: TorchKernels, *arguments: Any) -> None:
        self.memory.synchronize()
        begin = time.perf_counter_ns()
        copy_rows(self, *arguments)
        self.memory.synchronize()
        _TIMED.values[0] += time.perf_counter_ns() - begin
        _TIMED.values[1] += 1

    _TIMED.clear()
    TorchKernels.copy_rows = timed  # type: ignore[assignment, method-assign]
    try:
        yield _TIMED.values
    finally:
        TorchKernels.copy_rows = copy_rows  # type: ignore[method-assign]


@contextlib.contextmanager
def _without_pinning() -> Iterator[None]:
    pin = TorchMemory.pin
    TorchMemory.pin = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        TorchMemory.pin = pin  # type: ignore[method-assign]


def measure_naive(
    options: argparse.Namespace, memory: TorchMemory, *, in_dram: bool = False
) -> Row:
    """All feed-forward weights of each layer are read, copied and multiplied for each token.

    Reads go on while what has arrived is copied. Attention and the head are left out.
    """
    kernels = TorchKernels(2, memory, 32 * MIB)
    with contextlib.closing(kernels), Store(options.dram if in_dram else options.model) as store:
        store.open_reader(True, _IO_THREADS)
        layer = _NaiveLayer(store, memory, kernels)
        tokens = []
        before = memory.bytes_up
        for _ in range(1 + options.naive_tokens):
            before = memory.bytes_up
            tokens.append([layer.compute(at) for at in range(store.spec.bundled_layers)])
        up = memory.bytes_up - before
        pinned = memory.report()["pin_problem"] is None
        layer.close()
        spec = store.spec
        nbytes = spec.bundled_layers * spec.bundles_per_layer * store.header.stride
    sums = [{part: float(sum(one[part] for one in token)) for part in token[0]}
            for token in tokens[1:]]  # fmt: skip
    parts = {part: statistics.median(one[part] for one in sums) for part in sums[0]}
    name = "naive, all from DRAM" if in_dram else "naive, all from flash"
    return Row(
        name, 0.0, statistics.median(sum(one.values()) for one in sums),
        {"io_exposed": parts["wait"], "manage": parts["copy"], "ffn": parts["products"]},
        parts["copy"], float(nbytes), float(up), pinned,
    )  # fmt: skip


class _NaiveLayer:
    """One layer's bundles on the device, loaded anew each time through two pieces of staging."""

    def __init__(self, store: Store, memory: TorchMemory, kernels: TorchKernels) -> None:
        self._store, self._memory, self._kernels = store, memory, kernels
        self._stride, self._count = store.header.stride, store.spec.bundles_per_layer
        self._round = max(_ROUND_BYTES // self._stride, 1)
        self._buffer = core.Buffer(2 * self._round * self._stride)
        memory.pin(self._buffer)
        self._rows = memory.allocate(self._count * self._stride)
        self._ids = np.arange(self._count * store.header.neurons_per_bundle, dtype=np.int32)
        self._x = np.random.default_rng(0).standard_normal(store.spec.d_model, dtype=np.float32)

    def compute(self, layer: int) -> dict[str, int]:
        """Nanoseconds of waiting for reads, of copies and of products."""
        firsts = list(range(0, self._count, self._round))
        spent = {"wait": 0, "copy": 0, "products": 0}
        tickets = {0: self._submit(layer, 0, 0)}
        for at, first in enumerate(firsts):
            begin = time.perf_counter_ns()
            if at + 1 < len(firsts):  # the copy from that half has ended
                tickets[at + 1] = self._submit(layer, firsts[at + 1], (at + 1) % 2)
            self._store.wait(tickets.pop(at), layer)
            arrived = time.perf_counter_ns()
            some = np.arange(self._found(first), dtype=np.int32)
            half = np.int32(at % 2 * self._round)
            self._kernels.copy_rows(
                self._buffer.array(), some + half, self._stride, self._rows, some + np.int32(first)
            )
            self._memory.synchronize()
            spent["wait"] += arrived - begin
            spent["copy"] += time.perf_counter_ns() - arrived
        begin = time.perf_counter_ns()
        self._multiply()
        spent["products"] += time.perf_counter_ns() - begin
        return spent

    def _multiply(self) -> None:
        spec = self._store.spec
        nbytes = row_bytes(spec.dtype, spec.d_model)
        rows, step = spec.rows_per_neuron, self._store.header.rows_per_neuron * nbytes
        scores = np.empty(len(self._ids), np.float32)
        for row in range(rows - 1):
            where = self._rows, step, row * nbytes, spec.dtype, self._ids
            self._kernels.dot_rows(*where, self._x, scores)
        out = np.zeros(spec.d_model, np.float32)
        ends = np.append(np.arange(_BLOCK_ROWS, len(self._ids), _BLOCK_ROWS), len(self._ids))
        where = self._rows, step, (rows - 1) * nbytes, spec.dtype, self._ids
        active = np.maximum(scores, 0)
        self._kernels.weighted_sum_rows(*where, active, ends.astype(np.int32), out)

    def _found(self, first: int) -> int:
        return min(self._round, self._count - first)

    def _submit(self, layer: int, first: int, half: int) -> int:
        place = half * self._round * self._stride
        return self._store.submit_span(layer, first, self._found(first), self._buffer, place)

    def close(self) -> None:
        self._memory.synchronize()
        self._memory.unpin(self._buffer)
        del self._rows, self._buffer


def copy_rates(memory: TorchMemory) -> dict[str, float]:
    """Bytes a second to the device by size, of memory that is locked and that is not."""
    import torch

    found = {}
    for pinned in (True, False):
        buffer = core.Buffer(max(_COPIES))
        buffer.array()[:] = 1
        if pinned:
            memory.pin(buffer)
        for nbytes in _COPIES:
            source = torch.from_numpy(buffer.array()[:nbytes])
            there = torch.empty(nbytes, dtype=torch.uint8, device=memory.device)

            def copy(source: Any = source, there: Any = there) -> None:
                there.copy_(source, non_blocking=True)
                memory.synchronize()

            name = "locked" if pinned else "not locked"
            found[f"{format_bytes(nbytes)}, {name}"] = nbytes / _median_seconds(copy)
        if pinned:
            memory.unpin(buffer)
    return found


def device_rate(memory: TorchMemory) -> float:
    """Bytes a second, read and written, of a copy from the device to itself."""
    import torch

    nbytes = GIB if memory.device.type == "cuda" else 32 * MIB
    one, other = (torch.ones(nbytes, dtype=torch.uint8, device=memory.device) for _ in range(2))

    def copy() -> None:
        other.copy_(one)
        memory.synchronize()

    return 2 * nbytes / _median_seconds(copy)


def flash_rate(model: Path) -> float:
    """Bytes a second of one long direct read of the bundles by the same reader."""
    with Store(model) as store:
        store.open_reader(True, _IO_THREADS)
        spec = store.spec
        nbytes = spec.bundles_per_layer * store.header.stride
        buffer = core.Buffer(nbytes)
        times = []
        for layer in range(spec.bundled_layers):
            begin = time.perf_counter_ns()
            store.wait(store.submit_span(layer, 0, spec.bundles_per_layer, buffer), layer)
            times.append(time.perf_counter_ns() - begin)
    return nbytes * len(times) / (sum(times) / 1e9)


def _median_seconds(call: Callable[[], object]) -> float:
    found = []
    for _ in range(9):
        begin = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - begin)
    return max(statistics.median(found[2:]), 1) / 1e9


def measure(options: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """All rows, and the rates in the same run."""
    memory = open_memory(find_device(options.device), 1 << 40)
    rates: dict[str, Any] = {"to_device": copy_rates(memory), "on_device": device_rate(memory)}
    memory.close()  # what a copy took is not held while models are measured
    rates["flash"] = flash_rate(options.model)
    remark(NAME, f"bytes a second: {rates}")
    middle = options.shares[len(options.shares) // 2]
    steps: list[Callable[[], Row]] = [
        *(lambda share=share: measure_slots(options, share) for share in options.shares),
        lambda: measure_slots(options, middle, pinned=False),
        lambda: measure_naive(options, memory),
    ]
    if options.dram is not None:
        steps += [
            lambda: measure_slots(options, middle, in_dram=True),
            lambda: measure_naive(options, memory, in_dram=True),
        ]
    up = max(rates["to_device"].values())
    rows = []
    for step in steps:
        try:
            row = step()
        except FlashllmError as error:
            remark(NAME, f"left out: {error}")
            continue
        from_flash = 0.0 if row.name.endswith("DRAM") else row.bytes_read / rates["flash"]
        row.bound_ns = 1e9 * max(from_flash, row.bytes_up / up)
        rows.append(row)
        remark(NAME, f"{row.name}, {row.share:.0%}: {row.ns / 1e6:.1f} ms a token")
    return rows, rates


def table(rows: Sequence[Row]) -> str:
    """Markdown: a row for each way."""
    cells = [["weights", "slots on the device", "staging", "ms/token", "I/O wait", "copies (alone)",
              "predict", "plan, manage", "FFN products", "attention", "head", "read, MB",
              "to device, MB", "bound, ms", "bound ÷ time"]]  # fmt: skip
    for row in rows:
        part = dict.fromkeys(PARTS, 0.0) | row.parts_ns
        times = (part["io_exposed"], row.copy_ns, part["predict"], part["plan"] + part["manage"],
                 part["ffn"], part["attention"], part["head"])  # fmt: skip
        cells.append([
            row.name, f"{row.share:.0%}", "locked" if row.pinned else "not locked",
            f"{row.ns / 1e6:.2f}", *(f"{ns / 1e6:.2f}" for ns in times),
            f"{row.bytes_read / 1e6:,.1f}", f"{row.bytes_up / 1e6:,.1f}",
            f"{row.bound_ns / 1e6:.2f}", f"{row.bound_ns / max(row.ns, 1):.0%}",
        ])  # fmt: skip
    return markdown(cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments ask."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, positive = parser.add_argument, argument(parse_positive)
    add("model", type=Path, metavar="MODEL", help="a converted model with predictors")
    add("--device", type=argument(parse_device), required=True, metavar="NAME")
    add("--dram", type=Path, metavar="DIR",
        help="a copy of the model on a file system in memory, such as /dev/shm")  # fmt: skip
    add("--shares", type=argument(parse_shares), default=parse_shares("1,1/2,1/4"),
        metavar="SHARE,...", help="of the neurons (1,1/2,1/4)")  # fmt: skip
    add("--tokens", type=positive, default=TOKENS, metavar="N", help=f"({TOKENS})")
    add("--overlap", choices=typing.get_args(Overlap), default="none",
        help="what is read while something else is computed (none)")  # fmt: skip
    add("--naive-tokens", type=positive, default=3, metavar="N", help="(3)")
    options = parser.parse_args(arguments)
    rows, rates = measure(options)
    print(table(rows))
    settings = {key: str(value) for key, value in vars(options).items()}
    values = {
        "header": run_header(options.model, settings),
        "complete": True,
        "rates": rates,
        "rows": [asdict(row) for row in rows],
    }
    print(json.dumps(values))
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
