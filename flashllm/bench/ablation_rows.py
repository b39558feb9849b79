"""The rows of the paper's Table 2 as settings, with what the paper measured beside.

Source: LLM in a flash (arXiv 2312.11514), Table 2: a model of 6.7 billion parameters in 16 bits,
half of which fits into memory, on an M1 Max. Each row adds one part of the method to the one above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashllm.flash.plan import Plan


@dataclass(frozen=True, slots=True)
class PaperRow:
    """What the paper prints; sizes in GB of 1e9 bytes."""

    dram_gb: float
    read_gb: float
    gb_per_second: float
    io_ms: int


@dataclass(frozen=True, slots=True)
class Row:
    """One way of reading; every row above it lacks something that this one has."""

    key: str
    title: str
    paper: PaperRow | None = None
    dense: bool = False
    """Every neuron is computed."""
    holds_half: bool = True
    """Half of the model stays in memory; otherwise nothing does."""
    window: int = 0
    """Tokens whose neurons stay; 0 for none."""
    bundled: bool = False
    gap_bytes: int = 0
    io_threads: int = 32


def table_rows(window: int, io_threads: int) -> list[Row]:
    """The five rows, for a window of so many tokens and so many reading threads."""
    none = Row(
        "flash",
        "all from flash",
        PaperRow(0.0, 13.4, 6.10, 2130),
        dense=True,
        holds_half=False,
        io_threads=io_threads,
    )
    half = replace(
        none, key="half", title="half resident", paper=PaperRow(6.7, 6.7, 6.10, 1090),
        holds_half=True,
    )  # fmt: skip
    predictor = replace(
        half, key="predictor", title="+ predictor", paper=PaperRow(4.8, 0.9, 1.25, 738), dense=False
    )
    windowed = replace(
        predictor, key="window", title=f"+ window of {window}",
        paper=PaperRow(6.5, 0.2, 1.25, 164), window=window,
    )  # fmt: skip
    bundled = replace(
        windowed, key="bundling", title="+ bundling", paper=PaperRow(6.5, 0.2, 2.25, 87),
        bundled=True,
    )  # fmt: skip
    return [none, half, predictor, windowed, bundled]


def added_rows(last: Row, plan: Plan) -> list[Row]:
    """What this runtime does beyond the paper, one by one on top of the last row.

    Only what makes a difference under this plan: without a profile, threads are those of the table.
    """
    gap = replace(
        last, key="gap", title=f"+ neighbours {plan.gap_bytes} B apart read at once", paper=None,
        gap_bytes=plan.gap_bytes,
    )  # fmt: skip
    threads = replace(
        gap, key="threads", title=f"+ {plan.io_threads} threads, as profiled",
        io_threads=plan.io_threads,
    )  # fmt: skip
    return [gap] + ([threads] if threads.io_threads != last.io_threads else [])
