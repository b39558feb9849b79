"""Rates of this machine that bound a prompt, measured around its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from flashllm.bench.prompt.report import PromptRates
from flashllm.bench.tokens.machine_probe import MachineProbe
from flashllm.bench.tokens.machine_rates import chunk_rate, own_rate_of
from flashllm.planning.ways_to_read import MAX_READ_BYTES
from flashllm.spec import ModelSpec


class PromptMachine:
    """Measures products before a model is open, since they need memory, and the rest beside it."""

    def __init__(self, spec: ModelSpec, threads: int, *, selected: bool) -> None:
        """`selected` says whether prompts go through selected neurons, of each token its own."""
        self._resident = chunk_rate(spec.matrix_dtype, threads)
        self._bundles = chunk_rate(spec.dtype, threads)
        self._own = own_rate_of(spec.dtype, threads) if selected else None
        self._flash: list[float] = []
        self.dram_rates: list[float] = []
        """Bytes a second of memory, one for each look."""

    def look(self, probe: MachineProbe, io_threads: int) -> None:
        """Measures the disk, with reads as large as a prompt's, and memory."""
        flash = probe.flash_rate(MAX_READ_BYTES, io_threads)
        self._flash += [] if flash is None else [flash]
        self.dram_rates.append(probe.dram_rate())

    @property
    def rates(self) -> PromptRates:
        """Medians of what was measured."""
        return PromptRates(
            flash_bytes_per_second=_median(self._flash),
            dram_bytes_per_second=statistics.median(self.dram_rates),
            resident_products_per_second=self._resident,
            bundle_products_per_second=self._bundles,
            own_products_per_second=self._own,
        )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
