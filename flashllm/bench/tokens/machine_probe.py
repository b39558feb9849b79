"""Rates of this machine, measured in the same run as the tokens that they bound."""

from __future__ import annotations

import math
import mmap
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.bench.disk.probe import BUFFER_BYTES, probe
from flashllm.bench.tokens.machine_rates import (
    dram_rate,
    last_cache_bytes,
    matrix_bytes,
    pages_rate,
)
from flashllm.bench.tokens.samples import ProbeSample, ReaderCounts, RunSample
from flashllm.errors import FlashllmError
from flashllm.system.memory import rss_bytes
from flashllm.system.memory_limit import available_bytes
from flashllm.telemetry.costs import ratio

PROBE_SECONDS = 0.25
PROBE_REPEATS = 1
"""Repetitions in one measurement; one is made between any two runs, and their median counts."""
MARGIN_BYTES = 6 << 20
"""Left below the ceiling: for the threads that read, and for what the process may yet take."""
BUFFER_BYTES_LEAST = 2 << 20
MEMORY_RATES_APART = 1.2
"""Rates of memory that differ by more are reported."""
_TOUCH = 1


class MachineProbe:
    """Measures the device under a model's bundles, and memory, within the ceiling of the model."""

    def __init__(
        self,
        bundles: Path,
        device: Mapping[str, Any],
        dram_threads: int,
        ceiling_bytes: int,
        weights: NDArray[np.uint8],
        stride_bytes: int,
    ) -> None:
        """`device` is what `Model.io_report` gives.

        `weights` are resident ones, to be read where the ceiling has no room for other memory.
        Bundles lie `stride_bytes` apart.
        """
        self.problem = None if device["direct"] else "reads go through the page cache"
        self._bundles = bundles
        self._io_threads: int = device["threads"]
        # Reads that begin at a page, as those of such bundles do, are faster than others.
        page_bytes = math.gcd(stride_bytes, mmap.PAGESIZE)
        self._alignment: int = max(device["alignment_bytes"], page_bytes)
        self._dram_threads = dram_threads
        self._ceiling_bytes = ceiling_bytes
        self._weights = weights

    def look(self, run: RunSample) -> ProbeSample:
        """Measures flash at a run's mean read size and queue depth, and memory."""
        read_bytes = mean_read_bytes(run.reader, self._alignment)
        depth = max(round(ratio(run.reader.depth_ns, run.reader.busy_ns)), 1)
        reads = run.reader.reads > 0
        return ProbeSample(
            run=run.run,
            read_bytes=read_bytes,
            depth=depth,
            flash_bytes_per_second=self.flash_rate(read_bytes, depth) if reads else None,
            threads=self._io_threads,
            flash_all_bytes_per_second=self.flash_rate(read_bytes, self._io_threads)
            if reads
            else None,
            dram_threads=self._dram_threads,
            dram_bytes_per_second=self.dram_rate(),
        )

    def flash_rate(self, read_bytes: int, threads: int) -> float | None:
        """Bytes per second of reads at random places; None where `problem` says why not."""
        buffer_bytes = min(self._room_bytes(), BUFFER_BYTES)
        if self.problem is None and buffer_bytes < max(BUFFER_BYTES_LEAST, read_bytes):
            self.problem = "the ceiling leaves no memory to measure it"
        if self.problem is not None:
            return None
        try:
            found = probe(
                self._bundles, read_bytes, threads, PROBE_SECONDS, PROBE_REPEATS,
                buffer_bytes=buffer_bytes,
            )  # fmt: skip
        except FlashllmError as error:
            self.problem = str(error)
            return None
        return statistics.median(result.bytes_per_second for result in found)

    def _room_bytes(self) -> int:
        """What this process may take now without coming near its ceiling."""
        return self._ceiling_bytes - rss_bytes() - MARGIN_BYTES

    def dram_rate(self) -> float:
        """Bytes per second of plain reads, within the ceiling."""
        wanted = matrix_bytes(last_cache_bytes(), available_bytes())
        if wanted > self._room_bytes():
            return pages_rate(self._weights, self._dram_threads)
        buffer = core.Buffer(wanted)
        # Memory that was never written is one page of zeros, which the cache holds.
        buffer.array().fill(_TOUCH)
        return dram_rate(buffer, self._dram_threads)


def memory_warning(rates: Sequence[float]) -> str:
    """A sentence about memory that was faster at times, from bytes per second; "" if it was not.

    A virtual machine's processors may be threads of one core at times, and cores at others.
    """
    if not rates or max(rates) <= MEMORY_RATES_APART * min(rates):
        return ""
    least, most = (f"{rate / 1e9:.0f}" for rate in (min(rates), max(rates)))
    return (
        f"memory gave {least} to {most} GB/s between the runs, so the bound and the time may be of"
        " different moments. Other programs do that, and virtual machines whose processors share a"
        " core at times: compare runs by turns"
    )


def mean_read_bytes(reader: ReaderCounts, alignment: int) -> int:
    """The mean size of reads, rounded to one that can be read directly."""
    mean = ratio(reader.bytes_read, reader.reads)
    return max(round(mean / alignment), 1) * alignment
