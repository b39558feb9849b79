"""The comparison as plain values, as a table, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashllm.bench.kv.runs import KvRun
from flashllm.predictors.evaluation.plots import save
from flashllm.text_table import columns
from flashllm.units import format_bytes

COLORS = {
    "window": "#999999",
    "h2o": "#d55e00",
    "infinigen": "#0072b2",
    "infinigen-ahead": "#56b4e9",
    "values": "#cc79a7",
    "specache": "#009e73",
}


def report(runs: Sequence[KvRun]) -> list[dict[str, Any]]:
    """A row for each case."""
    return [run.to_json() for run in runs]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What each policy costs, and what it loses."""
    heads = [
        "policy", "budget", "perplexity", "ratio", "right", "seen", "late", "recall",
        "fetched a token", "index a token", "s a token", "fast memory",
    ]  # fmt: skip
    cells = [
        [
            f"{row['policy']}{' (lossy)' if row['lossy'] else ''}",
            "" if row["budget"] is None else f"{row['budget']:.0%}",
            f"{row['perplexity']:.4g}",
            f"{row['ratio']:.4f}",
            f"{row['accuracy']:.1%}",
            f"{row['seen_share']:.1%}",
            f"{row['late_share']:.1%}",
            f"{row['recall']:.3f}",
            format_bytes(round(row["fetched_bytes_per_token"])),
            format_bytes(round(row["index_bytes_per_token"])),
            f"{row['seconds_per_token']:.4f}",
            format_bytes(row["fast_bytes"]),
        ]
        for row in rows
    ]
    return columns([heads, *cells])


def draw(rows: Sequence[dict[str, Any]], title: str, directory: Path) -> Path:
    """Writes kv.png: perplexity, and recall, over the share of tokens that was seen."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, 4), layout="constrained")
        likely, recalled = figure.subplots(1, 2)
        likely.axhline(rows[0]["perplexity"], color="black", linewidth=0.8, label="full")
        for name in dict.fromkeys(row["policy"] for row in rows if row["budget"] is not None):
            own = sorted(
                (row for row in rows if row["policy"] == name), key=lambda row: row["seen_share"]
            )
            shares = [100 * row["seen_share"] for row in own]
            color = COLORS.get(name)
            likely.plot(shares, [row["perplexity"] for row in own], "o-", color=color, label=name)
            recalled.plot(shares, [row["recall"] for row in own], "o-", color=color, label=name)
        for axes, label in ((likely, "perplexity"), (recalled, "recall of attention's mass")):
            axes.set_xlabel("keys and values seen, %")
            axes.set_ylabel(label)
            axes.grid(color="#dddddd", linewidth=0.6)
        likely.legend()
        figure.suptitle(title, color="#555555", parse_math=False)
        path: Path = save(figure, directory / "kv.png")
        return path
