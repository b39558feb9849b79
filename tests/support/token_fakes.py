"""Samples by hand, and a machine that always gives the same, for the tests of `bench tokens`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from flashllm.bench.tokens.process import ProcessCounts
from flashllm.bench.tokens.samples import (
    PLAIN,
    WARM,
    ProbeSample,
    ReaderCounts,
    RunSample,
    TokenSample,
)
from flashllm.core.numpy_twin.latency import BINS, Latencies
from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import NO_COST, TokenCost

NOTHING = ProcessCounts(0, 0, 0, 0, 0, 0)


def cost(wall_ns: int = 100, **changes: Any) -> TokenCost:
    """A token all of whose time was attention, unless it is said otherwise."""
    values = {"wall_ns": wall_ns, "parts_ns": dict.fromkeys(PARTS, 0) | {"attention": wall_ns}}
    return dataclasses.replace(NO_COST, size_histogram=(0,) * 32, **(values | changes))


def run(
    number: int,
    kind: str,
    walls_ns: list[int],
    ids: tuple[int, ...] = (1, 2, 3),
    complete: bool = True,
    **changes: Any,
) -> RunSample:
    """A run with tokens that took so long."""
    tokens = tuple(
        TokenSample(number, kind, index, 1, wall, 4 + index, None if kind == PLAIN else cost(wall))
        for index, wall in enumerate(walls_ns)
    )
    values: dict[str, Any] = {
        "run": number,
        "kind": kind,
        "complete": complete,
        "finish_reason": "length" if complete else "cancelled",
        "first_token_ns": 1000,
        "prefill": None if kind == PLAIN else cost(),
        "token_ids": ids,
        "tokens": tokens,
        "process": NOTHING,
        "reader": ReaderCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        "latencies": Latencies(np.zeros(BINS, np.uint64)),
        "rss_peak_bytes": 1 << 20,
        "stolen_share": None,
    }
    return RunSample(**(values | changes))


class FakeProbe:
    """1 GB/s of flash (2 at all threads) and 10 GB/s of DRAM, whenever it looks."""

    problem: str | None = None

    def __init__(self, *_: object) -> None:
        self.looked: list[RunSample] = []

    def look(self, run: RunSample) -> ProbeSample:
        """The same as ever."""
        assert run.kind == WARM
        self.looked.append(run)
        return ProbeSample(run.run, 4096, 8, 1e9, 32, 2e9, 2, 1e10)

    def flash_rate(self, _read_bytes: int, _threads: int) -> float | None:
        """At all threads, or None where there is a problem."""
        return None if self.problem else 2e9

    def dram_rate(self) -> float:
        """As ever."""
        return 1e10
