"""Results that are kept, small, and the tables of docs/results.md and README.md made of them.

    flashllm bench tokens ~/big.flash --json | python -m benchmarks.results keep tokens NAME "TITLE"
    python -m benchmarks.results tables

A report is kept with its header: machine, command and date. Long lists (a token or a bin each) are
left out and named; directories are cut to their last part. `tables` writes what is between the
marks of both pages again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
RESULTS_PAGE = Path(__file__).parents[1] / "docs" / "results.md"
ITEMS_MAX = 16
LONG_BUT_KEPT = ("profile.points",)
BYTES_MAX = 64 << 10
_PATH = re.compile(r"(?<![\w.])(?:~|\.{0,2})/[^\s\"',]+")
_MARK = "<!-- {}: made by python -m benchmarks.results tables -->"
_END = "<!-- end -->"
_PEERS_HEAD = ["", "memory limit", "s/token (min to max)", "times ours", "peak RSS, MiB"]
_SUMMARY_OF = "peers-opt-6.7b-f16"
_SUMMARY_UNLIMITED = "llama.cpp"


def keep(kind: str, name: str, title: str, report: dict[str, Any]) -> Path:
    """Write a report, reduced; `ValueError` for one that is not small even so, or not whole."""
    if report.get("complete") is False:
        raise ValueError(f"{name}: an interrupted run is no result")
    left_out: list[str] = []
    reduced = _reduced(report, "", left_out)
    kept = {"kind": kind, "title": title, "left_out": left_out, "report": reduced}
    text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode()) > BYTES_MAX:
        raise ValueError(
            f"{name}: {len(text.encode())} bytes are more than the {BYTES_MAX} of a result"
        )
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(text, encoding="utf-8")
    return path


def _reduced(value: Any, where: str, left_out: list[str]) -> Any:
    if isinstance(value, dict):
        parts = {}
        for key, item in value.items():
            place = f"{where}{key}"
            if isinstance(item, list) and len(item) > ITEMS_MAX and place not in LONG_BUT_KEPT:
                if place not in left_out:
                    left_out.append(place)
                continue
            parts[key] = _reduced(item, f"{where}{key}.", left_out)
        return parts
    if isinstance(value, list):
        return [_reduced(item, where, left_out) for item in value]
    if isinstance(value, str):
        return _PATH.sub(lambda match: match.group().rstrip("/").rpartition("/")[2], value)
    return value


def load(kind: str) -> dict[str, dict[str, Any]]:
    """Kept results of one kind by name, in the order of their names."""
    found = {}
    for path in sorted(FOLDER.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["kind"] == kind:
            found[path.stem] = kept
    return found


def tokens_table() -> str:
    """What a token costs, a row for each kept result."""
    rows = [
        ["model", "neurons computed", "ceiling, MiB", "peak RSS, MiB", "tokens/s",
         "flash, MB/token", "in DRAM already", "bound ÷ time"],
    ]  # fmt: skip
    for kept in load("tokens").values():
        summary, header = kept["report"]["summary"], kept["report"]["header"]
        speed, settings = summary["decode"]["tokens_per_second"], header["settings"]
        rows.append([
            _title(kept),
            settings["select"] + (" (lossy)" if settings["lossy"] else " (exact)"),
            f"{summary['memory']['ceiling_bytes'] / 2**20:,.0f}",
            f"{summary['memory']['rss_peak_bytes'] / 2**20:,.0f}",
            f"{_number(speed['median'])} ({_number(speed['min'])} to {_number(speed['max'])})",
            _number(summary["flash"]["bytes_read_per_token"] / 1e6),
            f"{summary['cache']['hit_rate']:.1%}",
            f"{summary['bound']['share']:.0%}" if summary["bound"]["share"] else "",
        ])  # fmt: skip
    return markdown(rows)


def ablation_table() -> str:
    """The paper's Table 2 on our machine, the paper's own figures beside."""
    parts = []
    for kept in load("ablation").values():
        rows = [["", "held, GB", "MB/token", "GB/s", "I/O, ms", "the paper's MB", "GB/s", "ms"]]
        for row in kept["report"]["rows"]:
            paper = row["paper"]
            rows.append([
                row["title"],
                f"{row['held_bytes'] / 1e9:.2f}",
                _number(row["bytes_a_token"]["median"] / 1e6),
                f"{row['bytes_per_second']['median'] / 1e9:.2f}",
                _number(row["io_seconds"]["median"] * 1e3),
                *([_number(paper["read_gb"] * 1e3), f"{paper['gb_per_second']:.2f}",
                   str(paper["io_ms"])] if paper else ["", "", ""]),
            ])  # fmt: skip
        parts.append(f"{_title(kept)}:\n\n{markdown(rows)}")
    return "\n".join(parts)


def peers_table() -> str:
    """Seconds a token of us and of others, under a limit and without."""
    parts = []
    for kept in load("peers").values():
        rows = [_PEERS_HEAD, *map(_peers_row, kept["report"]["rows"])]
        parts.append(f"{_title(kept)}:\n\n{markdown(rows)}")
    return "\n".join(parts)


def summary_table() -> str:
    """The README's four rows: half of the memory for each, and all of it for llama.cpp."""
    rows = load("peers")[_SUMMARY_OF]["report"]["rows"]
    chosen = [
        row
        for row in rows
        if row["limit_bytes"] is not None or row["contender"] == _SUMMARY_UNLIMITED
    ]
    return markdown([_PEERS_HEAD, *map(_peers_row, chosen)])


def _peers_row(row: dict[str, Any]) -> list[str]:
    limit, spread = row["limit_bytes"], row["token_seconds"]
    bits = f", {row['weight_bits']:.2f} bits each" if row.get("weight_bits") else ""
    return [
        f"{row['contender']}, {row['parameters'] / 1e9:.2f} billion parameters{bits}",
        "none" if limit is None else f"{limit / 2**20:,.0f} MiB",
        f"{spread['median']:.3g} ({spread['min']:.3g} to {spread['max']:.3g})"
        if spread else row["problem"],
        f"{row['ratio']:.3g}" if row["ratio"] else "",
        f"{(row['rss_peak_bytes'] or 0) / 2**20:,.0f}",
    ]  # fmt: skip


def ceilings_table() -> str:
    """Speed against the memory ceiling, a row for each ceiling of each model."""
    rows = [["model", "ceiling, MiB", "of its weights", "tokens/s (min to max)",
             "flash, MB/token", "peak RSS, MiB", "bound ÷ time"]]  # fmt: skip
    for kept in load("ceilings").values():
        for row in kept["report"]["rows"]:
            speed, bound = row["tokens_per_second"], row["bound_share"]
            if speed is None:
                continue
            rows.append([
                f"{row['model']}: {_title(kept)}",
                f"{row['ceiling_bytes'] / 2**20:,.0f}",
                row["wanted"],
                f"{_number(speed['median'])} ({_number(speed['min'])} to {_number(speed['max'])})",
                _number(row["bytes_read_per_token"]["median"] / 1e6),
                f"{(row['rss_peak_bytes'] or 0) / 2**20:,.0f}",
                f"{bound['median']:.0%}" if bound else "",
            ])  # fmt: skip
    return markdown(rows)


def precision_table() -> str:
    """What fewer bits cost in quality, a row for each precision."""
    rows = [["bundles", "resident", "predictors", "flash, MB", "resident, MB",
             "perplexity, times that of f32", "divergence, nats", "likeliest token the same",
             "answers right"]]  # fmt: skip
    for kept in load("precision").values():
        for row in kept["report"]["rows"]:
            dense, right = row["text"]["dense"], row["answers"]["dense"]
            further = "".join(f", {name} {value}" for name, value in row["options"].items())
            rows.append([
                row["bundles"],
                row["resident"] + further,
                row["predictors"],
                f"{row['flash_bytes'] / 1e6:.1f}",
                f"{row['resident_bytes'] / 1e6:.1f}",
                f"{dense['ratio']:.4f} ± {dense['ratio_stderr']:.4f}",
                f"{dense['divergence_nats']:.1e}",
                f"{dense['same_token']:.1%}",
                f"{right['right']:.1%}",
            ])  # fmt: skip
    return markdown(rows)


def _title(kept: dict[str, Any]) -> str:
    made_up = " (synthetic)" if kept["report"]["header"]["synthetic"] else ""
    return f"{kept['title']}{made_up}"


TABLES: dict[str, Callable[[], str]] = {
    "tokens": tokens_table,
    "peers": peers_table,
    "ablation": ablation_table,
    "ceilings": ceilings_table,
    "precision": precision_table,
}
"""Of docs/results.md, by kind; a kind of which nothing is kept has no table."""
README_TABLES: dict[str, Callable[[], str]] = {"summary": summary_table}
KINDS = (*TABLES, "io", "plan", "cache", "reads", "same")


def page_text(path: Path, text: str) -> str:
    """The text of README.md or docs/results.md with its tables made again.

    `ValueError` where a mark is missing.
    """
    if path == README:
        return _with_tables(path, text, README_TABLES)
    kept = {kind: make for kind, make in TABLES.items() if load(kind)}
    return _with_tables(path, text, kept)


def _with_tables(path: Path, text: str, tables: dict[str, Callable[[], str]]) -> str:
    for name, make in tables.items():
        begin = _MARK.format(name)
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(_END)
        if not found or not ended:
            raise ValueError(f"{path.name}: there is no {begin} ... {_END}")
        text = f"{before}{begin}\n{make()}{_END}{after}"
    return text


def markdown(rows: list[list[str]]) -> str:
    """A table, the first row its head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(value: float) -> str:
    """Two digits, or all before the point."""
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def main() -> int:
    """Keep a report, or write the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="a report from standard input")
    keeping.add_argument("kind", choices=KINDS)
    keeping.add_argument("name")
    keeping.add_argument("title")
    commands.add_parser("tables", help="write the tables of docs/results.md and README.md")
    options = parser.parse_args()
    try:
        if options.command == "keep":
            print(keep(options.kind, options.name, options.title, json.load(sys.stdin)))
        else:
            for path in (README, RESULTS_PAGE):
                path.write_text(page_text(path, path.read_text("utf-8")), encoding="utf-8")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
