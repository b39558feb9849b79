"""`python -m benchmarks.kernels`: the rate of each kernel relative to memory bandwidth.

Goal: rates of matrices times a vector, dots of scattered rows and weighted sums of scattered rows,
for each encoding and instruction set, beside plain reads of the same memory in the same round, so
that the ratio holds where other programs slow both down; for scattered rows also beside reads of
rows of the same size at the same places with nothing computed of them, which is about what memory
gives of such rows. Of each, a round takes the best of five passes, and every pass of a kernel takes
memory that several before it did not. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import DTYPES

KERNELS = ("matvec", "dot_rows", "weighted_sum", "encode", "decode")
SCATTERED = ("dot_rows", "weighted_sum")
Case = tuple[str, str, str]
"""Kernel, encoding, instruction set."""
Round = tuple[float, float, float | None]
"""Bytes per second of the kernel, of plain reads, of reads of its rows where they are scattered."""
ROWS_A_BLOCK = 6
"""Of 64 neurons a tenth is active in a ReLU model."""
ENCODED_VALUES = 1 << 22
_PATTERN = 0x3C  # a byte that makes small finite numbers in every encoding
_PARTS = 4  # calls that go once through the buffer
_CELL = 18
_PASSES = 5  # as many as the core makes of plain reads, of which it says the best as well


@dataclass(frozen=True, slots=True)
class Rate:
    """One kernel: bytes per second of rows (of values in f32 for encode and decode)."""

    kernel: str
    dtype: str
    isa: str
    threads: int
    gb_per_s: float
    of_dram: float
    """The median over rounds of this rate over plain reads by as many threads."""
    of_row_reads: float | None
    """The same over reads of the same rows; None where they are not scattered."""


class Bench:
    """Calls of one instruction set and number of threads, over one buffer."""

    def __init__(self, buffer: core.Buffer, isa: str, threads: int, columns: int) -> None:
        self._threads = threads
        self.kernels = core.Kernels(threads=threads, isa=isa)
        self._raw = buffer.array()
        self._columns = columns
        self._x = np.random.default_rng(1).standard_normal(columns, dtype=np.float32)
        self._sum = np.zeros(columns, np.float32)
        self._parts: dict[str, Iterator[NDArray[np.int32]]] = {}

    def best(self, kernel: str, dtype: str) -> float:
        """Bytes per second of the best of a few calls."""
        rate: Callable[[str], float] = getattr(self, kernel)
        return max(rate(dtype) for _ in range(_PASSES))

    def row_reads(self, dtype: str) -> float:
        """Bytes per second of reading all rows, scattered, and computing nothing."""
        nbytes, ids = core.row_bytes(dtype, self._columns), self._shuffled(dtype)
        return len(ids) * nbytes * 1e9 / core.row_read_ns(self._raw, nbytes, ids, self._threads)

    def _shuffled(self, dtype: str) -> NDArray[np.int32]:
        count = len(self._raw) // core.row_bytes(dtype, self._columns)
        return np.random.default_rng(0).permutation(count).astype(np.int32)

    def _ids(self, dtype: str) -> NDArray[np.int32]:
        """Scattered rows, others in each call."""
        if dtype not in self._parts:
            self._parts[dtype] = itertools.cycle(np.array_split(self._shuffled(dtype), _PARTS))
        return next(self._parts[dtype])

    def matvec(self, dtype: str) -> float:
        """Bytes per second."""
        nbytes = core.row_bytes(dtype, self._columns)
        ids = self._ids(dtype)
        part = int(ids[0]) % _PARTS
        rows = len(self._raw) // nbytes // _PARTS
        raw = self._raw[part * rows * nbytes : (part + 1) * rows * nbytes]
        out = np.empty(rows, np.float32)
        return len(raw) / _seconds(lambda: self.kernels.matvec(raw, dtype, self._x, out))

    def dot_rows(self, dtype: str) -> float:
        """Bytes per second."""
        nbytes, ids = core.row_bytes(dtype, self._columns), self._ids(dtype)
        out = np.empty(len(ids), np.float32)
        seconds = _seconds(
            lambda: self.kernels.dot_rows(self._raw, nbytes, 0, dtype, ids, self._x, out)
        )
        return len(ids) * nbytes / seconds

    def weighted_sum(self, dtype: str) -> float:
        """Bytes per second."""
        nbytes, ids = core.row_bytes(dtype, self._columns), self._ids(dtype)
        weights = np.ones(len(ids), np.float32)
        ends = np.append(np.arange(ROWS_A_BLOCK, len(ids), ROWS_A_BLOCK), len(ids)).astype(np.int32)
        seconds = _seconds(
            lambda: self.kernels.weighted_sum_rows(
                self._raw, nbytes, 0, dtype, ids, weights, ends, self._sum
            )
        )
        return len(ids) * nbytes / seconds

    def encode(self, dtype: str) -> float:
        """Bytes of values per second."""
        rows = ENCODED_VALUES // self._columns
        values = np.tile(self._x, rows)
        out = np.empty(rows * core.row_bytes(dtype, self._columns), np.uint8)
        seconds = _seconds(lambda: self.kernels.encode_rows(values, self._columns, dtype, out))
        return values.nbytes / seconds

    def decode(self, dtype: str) -> float:
        """Bytes of values per second."""
        rows, nbytes = ENCODED_VALUES // self._columns, core.row_bytes(dtype, self._columns)
        ids = self._ids(dtype)[:rows]
        out = np.empty(len(ids) * self._columns, np.float32)
        seconds = _seconds(
            lambda: self.kernels.decode_rows(self._raw, nbytes, 0, dtype, ids, self._columns, out)
        )
        return out.nbytes / seconds


def _rate(case: Case, threads: int, rounds: Sequence[Round]) -> Rate:
    """Medians over the rounds of one case."""
    of_rows = [speed / rows for speed, _, rows in rounds if rows is not None]
    return Rate(
        *case,
        threads,
        gb_per_s=statistics.median(speed for speed, _, _ in rounds) / 1e9,
        of_dram=statistics.median(speed / plain for speed, plain, _ in rounds),
        of_row_reads=statistics.median(of_rows) if of_rows else None,
    )


def _seconds(call: Callable[[], None]) -> float:
    begin_ns = time.perf_counter_ns()
    call()
    return max(time.perf_counter_ns() - begin_ns, 1) / 1e9


def measure(arguments: argparse.Namespace) -> tuple[dict[int, float], list[Rate]]:
    """Bytes per second of plain reads by threads, and the rates of all kernels."""
    buffer = core.Buffer(arguments.mib << 20)
    buffer.array().fill(_PATTERN)
    dram: dict[int, float] = {}
    rates: list[Rate] = []
    for threads in arguments.threads:
        benches = {isa: Bench(buffer, isa, threads, arguments.columns) for isa in arguments.isa}
        cases = list(itertools.product(arguments.kernel, arguments.dtype, arguments.isa))
        reads: list[float] = []
        found: dict[Case, list[Round]] = {case: [] for case in cases}
        for _ in range(arguments.rounds):
            for case in cases:
                kernel, dtype, isa = case
                plain = buffer.nbytes * 1e9 / core.stream_read_ns(buffer, threads)
                reads.append(plain)
                rows = benches[isa].row_reads(dtype) if kernel in SCATTERED else None
                found[case].append((benches[isa].best(kernel, dtype), plain, rows))
        dram[threads] = statistics.median(reads)
        rates.extend(_rate(case, threads, found[case]) for case in cases)
        for bench in benches.values():
            bench.kernels.close()
    return dram, rates


def report(dram: dict[int, float], rates: list[Rate]) -> str:
    """A table for each number of threads: GB/s, the share of plain reads, of reads of the rows."""
    lines = []
    for threads, rate in dram.items():
        lines.append(f"\n{threads} threads: plain reads {rate / 1e9:.1f} GB/s")
        lines.append(f"{'':24}" + "".join(f"{dtype:>{_CELL}}" for dtype in DTYPES))
        of_threads = [rate for rate in rates if rate.threads == threads]
        for kernel, isa in dict.fromkeys((rate.kernel, rate.isa) for rate in of_threads):
            by_dtype = {r.dtype: r for r in of_threads if (r.kernel, r.isa) == (kernel, isa)}
            cells = [_cell(by_dtype[d]) if d in by_dtype else "" for d in DTYPES]
            lines.append(f"{kernel:13}{isa:11}" + "".join(f"{cell:>{_CELL}}" for cell in cells))
    lines.append("\nGB/s, % of plain reads, and (scattered rows) % of only reading the same rows.")
    return "\n".join(lines)


def _cell(rate: Rate) -> str:
    of_rows = "" if rate.of_row_reads is None else f"{rate.of_row_reads:.0%}"
    return f"{rate.gb_per_s:.1f} {rate.of_dram:4.0%} {of_rows:>4}"


def parse(words: list[str]) -> argparse.Namespace:
    """What to measure."""
    isas = core.available_isas()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS[:3]))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--isa", nargs="+", choices=isas, default=isas[1:] or isas)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--mib", type=int, default=1024, help="several times the last cache")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Measure, and print tables and a line of JSON."""
    arguments = parse(words)
    dram, rates = measure(arguments)
    print(report(dram, rates))
    settings = {name: getattr(arguments, name) for name in ("columns", "mib", "rounds")}
    print(json.dumps({"settings": settings, "dram": dram, "rates": [asdict(r) for r in rates]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
