"""The rows of the paper's Table 2 as settings, with what the paper measured.

Source: LLM in a flash (arXiv 2312.11514), Table 2: a model of 6.7 billion parameters in 16 bits,
half of which fits into memory, on an M1 Max. Each row adds one part of the method to the one above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flashllm.errors import UsageError
from flashllm.flash.file_names import RESIDENT_FILE
from flashllm.flash.manifest import read_manifest
from flashllm.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class PaperRow:
    """The paper's numbers; sizes in GB of 1e9 bytes."""

    dram_gb: float
    read_gb: float
    gb_per_second: float
    io_ms: int


@dataclass(frozen=True, slots=True)
class Row:
    """One way of reading; each row adds something to the row above it."""

    key: str
    title: str
    paper: PaperRow | None = None
    dense: bool = False
    """Every neuron is computed."""
    holds_half: bool = True
    """Whether half of the model stays in memory; otherwise nothing does."""
    window: int = 0
    """Tokens whose neurons stay; 0 for none."""
    bundled: bool = False
    gap_bytes: int = 0
    io_threads: int = 32
    base: str = ""
    """Key of the row that this one adds something to, if that is not the row above it."""
    precision: str = ""
    """Rows of one precision give the same logits, bit for bit."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan that differ from the base."""
    directory: Path | None = None
    """Another conversion of the model, whose predictors are used."""


def table_rows(window: int, io_threads: int) -> list[Row]:
    """The five rows, for a window of `window` tokens and `io_threads` reading threads."""
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


@dataclass(frozen=True, slots=True)
class Addition:
    """One thing that this runtime does beyond the paper."""

    key: str
    title: str
    """A format string over the fields of the plan."""
    change: Callable[[Plan], dict[str, Any]]
    """Fields of `Row` that change under the given plan, which has memory for everything and the
    disk's best settings. None where the plan makes no difference."""


ADDITIONS: tuple[Addition, ...] = (
    Addition(
        "gap",
        "neighbours {gap_bytes} B apart read at once",
        lambda plan: {"gap_bytes": plan.gap_bytes},
    ),
    Addition(
        "threads",
        "{io_threads} threads, as profiled",
        lambda plan: {"io_threads": plan.io_threads},
    ),
    Addition(
        "policy",
        "policy blend in as many slots",
        lambda _: {"plan": {"policy": "blend"}},
    ),
    Addition(
        "overlap-hits",
        "neurons that are there computed while others are read",
        lambda _: {"plan": {"overlap": "hits"}},
    ),
    Addition(
        "overlap-attention",
        "reads guessed before attention",
        lambda _: {"plan": {"overlap": "attention"}},
    ),
    Addition(
        "overlap-layer",
        "reads guessed a layer before",
        lambda _: {"plan": {"overlap": "layer"}},
    ),
    Addition(
        "kv",
        "keys and values in int8",
        lambda plan: (
            {"plan": {"kv_dtype": "int8"}, "precision": "keys and values in int8"}
            if plan.kv_dtype != "int8"
            else {}
        ),
    ),
)
"""What `--add` measures; a new switch needs one more entry. Rows of the table wait for their reads
and keep the paper's window. If several entries set the same field, the last one wins in the row of
all."""


def predictors_of(directory: Path) -> Addition:
    """An addition that uses the predictors of another conversion of the same model."""
    name = directory.name.replace("{", "{{").replace("}", "}}")
    change = {"directory": directory, "precision": str(directory)}
    return Addition(f"predictors:{directory}", f"predictors of {name}", lambda _: change)


def check_same_weights(directory: Path, other: Path) -> None:
    """`UsageError` if two conversions differ in more than their predictors."""
    ours, theirs = read_manifest(directory), read_manifest(other)
    if ours.spec != theirs.spec or ours.files[RESIDENT_FILE] != theirs.files[RESIDENT_FILE]:
        raise UsageError(
            f"{other}: its weights in memory are not those of {directory}; give a conversion of"
            " the same checkpoint that differs in --predictor-dtype only"
        )


def added_rows(last: Row, plan: Plan, additions: Sequence[Addition]) -> list[Row]:
    """Each addition alone on top of the last row, then all of them together.

    Only those that make a difference under this plan: without a profile, threads do not.
    """
    rows: list[Row] = []
    everything = replace(last, key="all", title="+ all of these", paper=None, base=last.key)
    for addition in additions:
        change = addition.change(plan)
        if all(getattr(last, name) == value for name, value in change.items()):
            continue
        title = "+ " + addition.title.format_map(_fields(plan))
        rows.append(
            replace(last, key=addition.key, title=title, paper=None, base=last.key, **change)
        )
        everything = _with(everything, change)
    return rows + ([everything] if len(rows) > 1 else [])


def _with(row: Row, change: Mapping[str, Any]) -> Row:
    """The row with one more change."""
    merged: dict[str, Any] = {
        name: {**getattr(row, name), **value} if isinstance(value, Mapping) else value
        for name, value in change.items()
    }
    if row.precision and "precision" in change:
        merged["precision"] = f"{row.precision}, {change['precision']}"
    return replace(row, **merged)


def _fields(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}
