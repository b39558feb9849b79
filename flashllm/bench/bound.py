"""How fast a token could be: the bytes that it moves over what this machine moves them with.

Both rates are measured in the same run as the token. Reading and computing may overlap, so the
larger of the two times is the bound; an engine that does one after the other takes their sum.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flashllm.accounting import ratio, rss_bytes
from flashllm.bench.header import memory_limit_bytes
from flashllm.bench.io_probe import probe
from flashllm.bench.machine import dram_rate, last_cache_bytes, matrix_bytes
from flashllm.bench.token_samples import ProbeSample, ReaderCounts, RunSample
from flashllm.errors import FlashllmError
from flashllm.flash import core

PROBE_SECONDS = 0.25
PROBE_REPEATS = 1
"""A look; looks come once between any two runs, and their median counts."""
_TOUCH = 1


@dataclass(frozen=True, slots=True)
class Bound:
    """One token's bytes, the rates for them, and the time that it took."""

    flash_bytes: float
    flash_bytes_per_second: float | None
    """None where it could not be measured; nothing is said of flash then."""
    dram_bytes: float
    dram_bytes_per_second: float
    time_ns: float

    @property
    def flash_ns(self) -> float | None:
        """Time that flash takes for its bytes."""
        if not self.flash_bytes:
            return 0.0
        if self.flash_bytes_per_second is None:
            return None
        return self.flash_bytes * 1e9 / self.flash_bytes_per_second

    @property
    def dram_ns(self) -> float:
        """Time that DRAM takes for its bytes."""
        return self.dram_bytes * 1e9 / self.dram_bytes_per_second

    @property
    def larger_ns(self) -> float:
        """The bound."""
        return max(self.flash_ns or 0.0, self.dram_ns)

    @property
    def sum_ns(self) -> float:
        """The bound of an engine in which nothing overlaps."""
        return (self.flash_ns or 0.0) + self.dram_ns

    @property
    def share(self) -> float:
        """The bound over the time: 1 is as fast as this machine can."""
        return ratio(self.larger_ns, self.time_ns)

    @property
    def binds(self) -> str:
        """Which of the two is the bound."""
        return "flash" if (self.flash_ns or 0.0) > self.dram_ns else "DRAM"

    def to_json(self) -> dict[str, Any]:
        """Plain values, the derived ones included."""
        return {
            **dataclasses.asdict(self),
            "flash_ns": self.flash_ns,
            "dram_ns": self.dram_ns,
            "larger_ns": self.larger_ns,
            "sum_ns": self.sum_ns,
            "share": self.share,
            "sum_share": ratio(self.sum_ns, self.time_ns),
            "binds": self.binds,
        }


class MachineProbe:
    """Looks at the device under a model's bundles, and at memory."""

    def __init__(self, bundles: Path, device: Mapping[str, Any], dram_threads: int) -> None:
        """`device` is what `Model.io_report` gives."""
        self.problem = None if device["direct"] else "reads go through the page cache"
        self._bundles = bundles
        self._io_threads: int = device["threads"]
        self._alignment: int = device["alignment_bytes"]
        self._dram_threads = dram_threads

    def look(self, run: RunSample) -> ProbeSample:
        """What flash gives at a run's mean read size and queue depth, and what memory gives."""
        read_bytes = mean_read_bytes(run.reader, self._alignment)
        depth = max(round(ratio(run.reader.depth_ns, run.reader.busy_ns)), 1)
        reads = run.reader.reads > 0
        return ProbeSample(
            run=run.run,
            read_bytes=read_bytes,
            depth=depth,
            flash_bytes_per_second=self._flash(read_bytes, depth) if reads else None,
            threads=self._io_threads,
            flash_all_bytes_per_second=self._flash(read_bytes, self._io_threads) if reads else None,
            dram_threads=self._dram_threads,
            dram_bytes_per_second=self._dram(),
        )

    def _flash(self, read_bytes: int, threads: int) -> float | None:
        if self.problem is not None:
            return None
        try:
            found = probe(self._bundles, read_bytes, threads, PROBE_SECONDS, repeats=PROBE_REPEATS)
        except FlashllmError as error:
            self.problem = str(error)
            return None
        return statistics.median(result.bytes_per_second for result in found)

    def _dram(self) -> float:
        available_bytes = psutil.virtual_memory().available
        limit_bytes = memory_limit_bytes()
        if limit_bytes is not None:
            available_bytes = min(available_bytes, max(limit_bytes - rss_bytes(), 0))
        buffer = core.Buffer(matrix_bytes(last_cache_bytes(), available_bytes))
        # Memory that was never written is one page of zeros, which the cache holds.
        buffer.array().fill(_TOUCH)
        return dram_rate(buffer, self._dram_threads)


def mean_read_bytes(reader: ReaderCounts, alignment: int) -> int:
    """The mean size of reads, rounded to one that can be read directly."""
    mean = ratio(reader.bytes_read, reader.reads)
    return max(round(mean / alignment), 1) * alignment
