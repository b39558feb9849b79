"""Speed against the memory ceiling: `python -m benchmarks.ceilings MODEL... --ids IDS`.

For each ceiling, `flashllm bench tokens` runs in a process of its own, interleaved: every model at
every ceiling, then all of them again. A ceiling is a part of the model's weights, or the smallest
that the planner accepts. Several models, such as one in several precisions, share the picture.

    python -m benchmarks.ceilings big.f16 big.int8 --ids 5,6,7,8 --plot curve.png

The exit code is 1 where a process took more memory than its ceiling, or failed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.ceilings_plot import draw
from benchmarks.own_command import CommandError, ask, ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.sample_statistics import spread
from flashllm.cli.shared.flags import argument
from flashllm.errors import EXIT_INTERRUPTED, UsageError
from flashllm.flash.manifest import Manifest, read_manifest
from flashllm.planning.shape_estimate import Weights
from flashllm.settings.values import parse_ids, parse_positive
from flashllm.units import MIB

NAME = "ceilings"
FRACTIONS = "3/4,1/2,3/8,smallest"
SMALLEST = "smallest"
_PART = re.compile(r"[1-9][0-9]{0,3}/[1-9][0-9]{0,3}|[1-9][0-9]{0,3}|0?\.[0-9]{0,3}[1-9]")
MARGIN_BYTES = 24 * MIB
"""Above the planner's smallest: what an interpreter takes differs a little between processes."""
_TITLES = [
    "model", "ceiling, MiB", "of its weights", "tokens/s (min to max, runs)", "flash, MB/token",
    "in DRAM already", "peak RSS, MiB", "bound ÷ time", "manage", "window",
]  # fmt: skip


@dataclass(slots=True)
class Row:
    """One model under one ceiling, and the reports of its runs."""

    model: Path
    name: str
    wanted: str
    """The part that was asked for, as it was written."""
    weight_bytes: int
    ceiling_bytes: int
    problem: str = ""
    reports: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values: medians over the runs, and the most memory that any of them took."""
        summaries = [report["summary"] for report in self.reports]
        peaks = [s["memory"]["rss_peak_bytes"] for s in summaries]
        known = [peak for peak in peaks if peak is not None]
        shares = [s["bound"]["share"] for s in summaries if s["bound"]]
        return {
            "model": self.name,
            "wanted": self.wanted,
            "weight_bytes": self.weight_bytes,
            "ceiling_bytes": self.ceiling_bytes,
            "problem": self.problem,
            "tokens_per_second": spread(
                [s["decode"]["tokens_per_second"]["median"] for s in summaries]
            ),
            "bytes_read_per_token": spread([s["flash"]["bytes_read_per_token"] for s in summaries]),
            "hit_rate": spread([s["cache"]["hit_rate"] for s in summaries]),
            "rss_peak_bytes": max(known, default=None),
            "within_ceiling": max(known) <= self.ceiling_bytes if known else None,
            "bound_share": spread(shares),
            "manage_share": spread([s["parts"]["shares"]["manage"] for s in summaries]),
            "window": summaries[-1]["cache"]["window"] if summaries else None,
            "same_tokens": all(s["same_tokens"] for s in summaries),
        }


def parse_fractions(text: str) -> list[str]:
    """Parts of a model, such as 3/4 or 0.5, and `smallest`, separated by commas."""
    wanted = [part.strip() for part in text.split(",")]
    for part in wanted:
        if part != SMALLEST and not _PART.fullmatch(part):
            raise UsageError(f"{part!r} is no part of a model; write 1/2, 0.4, or smallest")
    return wanted


def rows_of(model: Path, wanted: Sequence[str], passed_on: Sequence[str]) -> list[Row]:
    """The ceilings of one model, largest first; those that the planner refuses have a problem."""
    manifest = read_manifest(model)
    weight_bytes = Weights.of(manifest.spec).total
    plan = ask("plan", str(model), "--json", *passed_on)["plan"]
    smallest_bytes = -(-(int(plan["smallest_bytes"]) + MARGIN_BYTES) // MIB) * MIB
    rows = []
    for part in wanted:
        ceiling_bytes = smallest_bytes
        if part != SMALLEST:
            ceiling_bytes = int(weight_bytes * Fraction(part))
        row = Row(model, _name(manifest), part, weight_bytes, ceiling_bytes)
        if ceiling_bytes < int(plan["smallest_bytes"]):
            row.problem = f"below the smallest that works, {smallest_bytes // MIB:,} MiB"
        rows.append(row)
    return sorted(rows, key=lambda row: -row.ceiling_bytes)


def _name(manifest: Manifest) -> str:
    """With its precisions: conversions of one checkpoint have one name."""
    spec = manifest.spec
    resident = "" if spec.resident_dtype is None else f", resident {spec.resident_dtype}"
    return f"{manifest.name}, {spec.dtype}{resident}"


def measure(rows: Sequence[Row], options: argparse.Namespace, passed_on: Sequence[str]) -> bool:
    """All rows in turn, round after round; whether all ended."""
    try:
        for number in range(options.rounds):
            for row in rows:
                if row.problem:
                    continue
                said = _add_run(row, options, passed_on)
                where = f"{row.name}, {row.ceiling_bytes // MIB:,} MiB"
                remark(NAME, f"round {number + 1} of {options.rounds}, {where}: {said}")
    except KeyboardInterrupt:
        return False
    return True


def _add_run(row: Row, options: argparse.Namespace, passed_on: Sequence[str]) -> str:
    """Runs a row once more and describes the result; a failed row is not repeated."""
    try:
        report = _run(row, options, passed_on)
    except CommandError as error:
        row.problem = f"failed: {error}"
        return row.problem
    row.reports.append(report)
    return f"{report['summary']['decode']['tokens_per_second']['median']:.3g} tokens/s"


def _run(row: Row, options: argparse.Namespace, passed_on: Sequence[str]) -> dict[str, Any]:
    prompt = ["--ids", ",".join(map(str, options.ids))] if options.ids else []
    length = ["-n", str(options.tokens), "--runs", str(options.runs), "--no-telemetry-cost"]
    ceiling = ["--memory", str(row.ceiling_bytes), "--json"]
    return ask("bench", "tokens", str(row.model), *ceiling, *length, *prompt, *passed_on)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row for each ceiling."""
    return markdown([_TITLES, *map(_cells, rows)])


def _cells(row: dict[str, Any]) -> list[str]:
    front = [row["model"], f"{row['ceiling_bytes'] / MIB:,.0f}", row["wanted"]]
    speed = row["tokens_per_second"]
    if speed is None:
        return [*front, row["problem"].replace("|", "/") or "not measured", *[""] * 6]
    over = " ABOVE THE CEILING" if row["within_ceiling"] is False else ""
    bound = row["bound_share"]
    return [
        *front,
        f"{speed['median']:.3g} ({speed['min']:.3g} to {speed['max']:.3g}, {speed['n']})",
        f"{row['bytes_read_per_token']['median'] / 1e6:,.4g}",
        f"{row['hit_rate']['median']:.1%}",
        f"{(row['rss_peak_bytes'] or 0) / MIB:,.0f}{over}",
        f"{bound['median']:.0%}" if bound else "",
        f"{row['manage_share']['median']:.1%}",
        str(row["window"]),
    ]


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and what goes to the commands that are run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ceilings",
        description=__doc__,
        epilog="Options that it does not know, such as --select or --profile, are passed on.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("models", type=Path, nargs="+", metavar="MODEL", help="a converted model")
    add("--ids", type=argument(parse_ids), metavar="IDS", help="the prompt as token ids: 1,2,3")
    add(
        "--fractions",
        type=argument(parse_fractions),
        default=parse_fractions(FRACTIONS),
        metavar="PART,...",
        help=f"of the model's weights, or smallest ({FRACTIONS})",
    )
    add("--rounds", type=argument(parse_positive), default=5, metavar="N", help="processes (5)")
    add("--runs", type=argument(parse_positive), default=1, metavar="N", help="warm, in each (1)")
    add("-n", "--tokens", type=argument(parse_positive), default=48, metavar="N", help="(48)")
    add("--json", action="store_true", help="one JSON object with every number")
    add("--plot", type=Path, metavar="FILE", help="draw the curve there (needs matplotlib)")
    return parser.parse_known_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, draw; returns the exit code."""
    options, passed_on = parse(arguments)
    if options.plot is not None:
        from flashllm.predictors.evaluation.plots import require_matplotlib

        require_matplotlib()
    rows = [row for model in options.models for row in rows_of(model, options.fractions, passed_on)]
    complete = measure(rows, options, passed_on)
    found = [row.to_json() for row in rows]
    plain = {name: str(value) for name, value in vars(options).items()}
    header = run_header(options.models[0], plain | {"passed_on": passed_on})
    if options.json:
        print(json.dumps({"header": header, "complete": complete, "rows": found}))
    else:
        print(table(found), end="")
    if options.plot is not None:
        remark(NAME, f"wrote {draw(found, options.plot, synthetic=header['synthetic'])}")
    if not complete:
        remark(NAME, "interrupted; what was measured until then")
        return EXIT_INTERRUPTED
    if any(row["within_ceiling"] is False for row in found):
        remark(NAME, "a process took more memory than its ceiling")
        return 1
    return 1 if any(row["problem"].startswith("failed") for row in found) else 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
