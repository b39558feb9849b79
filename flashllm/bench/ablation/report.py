"""The result of an ablation: plain values, a table, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from flashllm.bench.ablation.run import Ablation, RowResult
from flashllm.bench.sample_statistics import Spread
from flashllm.telemetry.costs import ratio
from flashllm.text_table import columns

FORMULA_TOLERANCE = 0.02
_TITLES = (
    "row",
    "DRAM GB",
    "MB/token",
    "formula",
    "off by",
    "GB/s",
    "I/O ms (of all runs)",
    "token ms",
)
_ADDED_TITLES = ("added to the last row", "token, speed", "I/O, speed", "bytes", "reads")


def report(ablation: Ablation, results: Sequence[RowResult], complete: bool) -> dict[str, Any]:
    """The report of all rows that ran at least once."""
    rows = [_row(result) for result in results if result.runs]
    sparse = [result for result in results if result.runs and not result.row.dense]
    waits = [row["io_seconds"]["median"] for row in rows if row["paper"] is not None]
    return {
        "complete": complete,
        "model_bytes": ablation.weights.total,
        "window": ablation.window,
        "select": ablation.select,
        "rows": rows,
        "within_formula": all(
            abs(row["off"]) <= FORMULA_TOLERANCE for row in rows if row["paper"] is not None
        ),
        "each_faster_than_above": all(b < a for a, b in pairwise(waits)),
        "added": _added(results),
        "same_answers": _same_answers(sparse),
    }


def _same_answers(results: Sequence[RowResult]) -> bool:
    """Whether all rows of the same precision gave the same logits."""
    answers: dict[str, set[str]] = {}
    for result in results:
        answers.setdefault(result.row.precision, set()).update(run.answers for run in result.runs)
    return all(len(found) <= 1 for found in answers.values())


def _added(results: Sequence[RowResult]) -> list[dict[str, Any]]:
    """What each addition gained over its base, run by run of the same round."""
    known = {result.row.key: result.runs for result in results}
    found = []
    for result in results:
        pairs = list(zip(known.get(result.row.base, ()), result.runs, strict=False))
        if not pairs:
            continue
        found.append(
            {
                "key": result.row.key,
                "title": result.row.title,
                "base": result.row.base,
                "speed": Spread.of([ratio(b.seconds, own.seconds) for b, own in pairs]).to_json(),
                "io": Spread.of(
                    [ratio(b.io_seconds, own.io_seconds, empty=1.0) for b, own in pairs]
                ).to_json(),
                "bytes": Spread.of(
                    [ratio(own.bytes_a_token, b.bytes_a_token, empty=1.0) for b, own in pairs]
                ).to_json(),
                "reads": Spread.of(
                    [ratio(own.reads, b.reads, empty=1.0) for b, own in pairs]
                ).to_json(),
            }
        )
    return found


def _row(result: RowResult) -> dict[str, Any]:
    runs = result.runs
    io = Spread.of([run.io_seconds for run in runs])
    moved = Spread.of([run.bytes_a_token for run in runs])
    paper = result.row.paper
    return {
        "key": result.row.key,
        "title": result.row.title,
        "tokens_a_run": len(runs[0].costs),
        "held_bytes": result.held_bytes,
        "formula_bytes_a_token": result.formula_bytes,
        "bytes_a_token": moved.to_json(),
        "off": ratio(moved.median - result.formula_bytes, result.formula_bytes),
        "reads_a_token": Spread.of([run.reads for run in runs]).to_json(),
        "bytes_per_second": Spread.of(
            [ratio(run.bytes_a_token, run.io_seconds) for run in runs]
        ).to_json(),
        "io_seconds": io.to_json(),
        "token_seconds": Spread.of([run.seconds for run in runs]).to_json(),
        "passes": sum(cost.extra_rounds for run in runs for cost in run.costs),
        "spilled": sum(cost.evicted_early for run in runs for cost in run.costs),
        "paper": None if paper is None else asdict(paper),
        "answers": sorted({run.answers for run in runs}),
    }


def table(found: dict[str, Any]) -> str:
    """The rows as text, next to the paper's, with a verdict."""
    lines = [_TITLES, *(_cells(row) for row in found["rows"])]
    paper: list[tuple[str, ...]] = [
        ("paper's", "DRAM GB", "MB/token", "", "", "GB/s", "I/O ms", "")
    ]
    paper += [_paper_cells(row["title"], row["paper"]) for row in found["rows"] if row["paper"]]
    text = columns(lines) + "\n" + columns(paper)
    text += (
        "(the paper's: 6.7 billion parameters in 16 bits on an M1 Max, half of them resident)\n\n"
    )
    if found["added"]:
        text += columns([_ADDED_TITLES, *map(_added_cells, found["added"])])
        text += (
            "(each alone over the base, round by round: medians, in brackets least and most; above"
            " 1x is faster)\n\n"
        )
    return text + "".join(f"{sentence}\n" for sentence in _verdicts(found))


def _added_cells(added: dict[str, Any]) -> tuple[str, ...]:
    speed = added["speed"]
    return (
        added["title"],
        f"{speed['median']:.3f}x ({speed['min']:.3f} to {speed['max']:.3f})",
        f"{added['io']['median']:.3f}x",
        f"{added['bytes']['median'] - 1:+.1%}",
        f"{added['reads']['median'] - 1:+.1%}",
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    io = row["io_seconds"]
    return (
        row["title"],
        f"{row['held_bytes'] / 1e9:.3f}",
        _megabytes(row["bytes_a_token"]["median"]),
        _megabytes(row["formula_bytes_a_token"]),
        f"{row['off']:+.1%}",
        f"{row['bytes_per_second']['median'] / 1e9:.2f}",
        f"{io['median'] * 1e3:.1f} ({io['min'] * 1e3:.1f} to {io['max'] * 1e3:.1f})",
        f"{row['token_seconds']['median'] * 1e3:.1f}",
    )


def _waits(each_faster: bool) -> str:
    if each_faster:
        return "Every row of the paper's waits less for flash than the one above it."
    return (
        "Not every row waits less than the one above it: this disk gains nothing from what such a"
        " row adds."
    )


def _paper_cells(title: str, paper: dict[str, Any]) -> tuple[str, ...]:
    dram, rate = f"{paper['dram_gb']:.1f}", f"{paper['gb_per_second']:.2f}"
    return (title, dram, _megabytes(paper["read_gb"] * 1e9), "", "", rate, str(paper["io_ms"]), "")


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f}" if nbytes >= 1e8 else f"{nbytes / 1e6:.4g}"


def _verdicts(found: dict[str, Any]) -> list[str]:
    runs = {len(row["io_seconds"]["samples"]) for row in found["rows"]}
    said = [f"Interleaved runs of each row: {min(runs)}; medians, and in brackets least and most."]
    if not found["complete"]:
        said.append("Interrupted: what was measured until then.")
    good, bad = "Every row reads", "Not every row reads"
    said.append(
        f"{good if found['within_formula'] else bad} within"
        f" {FORMULA_TOLERANCE:.0%} of the bytes that the formula gives (padding of bundles, and"
        " rows that are no whole blocks, add to them)."
    )
    if sum(row["paper"] is not None for row in found["rows"]) > 1:
        said.append(_waits(found["each_faster_than_above"]))
    if not found["same_answers"]:
        said.append("THE ROWS GAVE DIFFERENT LOGITS, which must not be: please report it.")
    return said
