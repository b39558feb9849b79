"""`python -m benchmarks.products`: rates of rows times many vectors, beside torch's.

Goal: operations a second of `matmul` and of `weighted_sum_rows_all` by number of vectors, for each
encoding, and of torch's product with the same rows decoded to f32, in the same round, so that the
ratio holds where other programs slow both down. Of each, a round takes the best of three. Sums are
measured with all weights, and with a tenth of them other than 0, as after a ReLU; operations are
counted as if none were. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import DTYPES

PRODUCTS = ("matmul", "sums", "sparse sums")
_PASSES = 3
_ACTIVE = 0.1
_BLOCK = 64
_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rate:
    """One product: the median of its rate, and that of its ratio to torch's in the same round."""

    product: str
    dtype: str
    vectors: int
    gflop_per_s: float
    of_torch: float


class Bench:
    """Products of one matrix, in every encoding."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rows, self.columns = arguments.rows, arguments.columns
        self.kernels = core.Kernels(arguments.threads, arguments.isa)
        torch.set_num_threads(arguments.threads)
        self._random = np.random.default_rng(0)
        self._values = self._normal(self.rows, self.columns)
        self._raw = {dtype: self._encoded(dtype) for dtype in arguments.dtype}
        self._ids = np.arange(self.rows, dtype=np.int32)
        self._ends = np.append(np.arange(_BLOCK, self.rows, _BLOCK), self.rows).astype(np.int32)

    def round(self, product: str, vectors: int) -> tuple[float, dict[str, float]]:
        """Operations a second of torch, and of ours by encoding."""
        x, weights = self._normal(vectors, self.columns), self._normal(vectors, self.rows)
        if product == "sparse sums":
            weights[self._random.random(weights.shape) >= _ACTIVE] = 0
        operations = 2 * vectors * self._values.size
        theirs = operations / _best(self._theirs(product, x, weights))
        calls = {dtype: self._ours(product, dtype, x, weights) for dtype in self._raw}
        return theirs, {dtype: operations / _best(call) for dtype, call in calls.items()}

    def _theirs(self, product: str, x: _Floats, weights: _Floats) -> Callable[[], object]:
        matrix, of_x, of_weights = map(torch.from_numpy, (self._values, x, weights))
        if product == "matmul":
            return lambda: of_x @ matrix.T
        total = torch.zeros(len(x), self.columns)
        return lambda: total.addmm_(of_weights, matrix)

    def _ours(self, product: str, dtype: str, x: _Floats, weights: _Floats) -> Callable[[], object]:
        raw, kernels = self._raw[dtype], self.kernels
        if product == "matmul":
            out = np.empty((len(x), self.rows), np.float32)
            return lambda: kernels.matmul(raw, dtype, x, out)
        total, nbytes = np.zeros_like(x), core.row_bytes(dtype, self.columns)
        return lambda: kernels.weighted_sum_rows_all(
            raw, nbytes, 0, dtype, self._ids, weights, self._ends, total
        )

    def _normal(self, rows: int, columns: int) -> _Floats:
        return self._random.standard_normal((rows, columns), dtype=np.float32)

    def _encoded(self, dtype: str) -> NDArray[np.uint8]:
        raw = np.empty(self.rows * core.row_bytes(dtype, self.columns), np.uint8)
        self.kernels.encode_rows(self._values.reshape(-1), self.columns, dtype, raw)
        return raw


def _best(call: Callable[[], object]) -> float:
    """Seconds."""
    found = []
    for _ in range(_PASSES):
        begin_ns = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - begin_ns)
    return max(min(found), 1) / 1e9


def measure(arguments: argparse.Namespace) -> list[Rate]:
    """Medians over the rounds; torch has a rate of its own for each product."""
    bench = Bench(arguments)
    rates = []
    for product in arguments.product:
        for vectors in arguments.vectors:
            rounds = [bench.round(product, vectors) for _ in range(arguments.rounds)]
            theirs = [rate for rate, _ in rounds]
            rates.append(Rate(product, "torch", vectors, statistics.median(theirs) / 1e9, 1.0))
            for dtype in arguments.dtype:
                ours = [by_dtype[dtype] for _, by_dtype in rounds]
                ratios = [rate / other for rate, other in zip(ours, theirs, strict=True)]
                speed = statistics.median(ours) / 1e9
                rates.append(Rate(product, dtype, vectors, speed, statistics.median(ratios)))
    bench.kernels.close()
    return rates


def report(rates: list[Rate]) -> str:
    """A line for each product and number of vectors: GFLOP/s, and the share of torch's."""
    lines = []
    for product, vectors in dict.fromkeys((rate.product, rate.vectors) for rate in rates):
        cells = [
            f"{rate.dtype} {rate.gflop_per_s:.1f}"
            + ("" if rate.dtype == "torch" else f" ({rate.of_torch:.2f})")
            for rate in rates
            if (rate.product, rate.vectors) == (product, vectors)
        ]
        lines.append(f"{product:12}{vectors:5} vectors  " + "  ".join(cells))
    lines.append("\nGFLOP/s, and the share of torch's on decoded rows in the same round.")
    return "\n".join(lines)


def parse(words: list[str]) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    parser.add_argument("--product", nargs="+", choices=PRODUCTS, default=list(PRODUCTS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--vectors", nargs="+", type=int, default=[1, 4, 16, 64, 512])
    parser.add_argument("--isa", choices=core.available_isas())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Measure, and print a table and a line of JSON."""
    arguments = parse(words)
    rates = measure(arguments)
    print(report(rates))
    print(json.dumps({"settings": vars(arguments), "rates": [asdict(rate) for rate in rates]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
