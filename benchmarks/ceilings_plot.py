"""The curve of `benchmarks.ceilings` as a picture: tokens a second against the ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashllm.units import GIB

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw(rows: Sequence[dict[str, Any]], path: Path, *, synthetic: bool = False) -> Path:
    """A PNG file: a line for each model, and at each ceiling the least and the most of the runs."""
    from flashllm.predictors.evaluation.plots import save
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    measured = [row for row in rows if row["tokens_per_second"]]
    for number, model in enumerate(dict.fromkeys(row["model"] for row in measured)):
        own = [row for row in measured if row["model"] == model]
        _line(axis, model, own, COLORS[number % len(COLORS)])
    made_up = " (synthetic weights)" if synthetic else ""
    axis.set(
        title=f"Speed against memory{made_up}; bars: least and most of the runs",
        xlabel="memory ceiling of the whole process, GiB",
        ylabel="tokens a second",
    )
    right = max((row["ceiling_bytes"] for row in measured), default=GIB) / GIB
    top = max((row["tokens_per_second"]["max"] for row in measured), default=1.0)
    axis.set_xlim(0, 1.08 * right)
    axis.set_ylim(0, 1.15 * top)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if measured:
        axis.legend(frameon=False, loc="best")
    drawn: Path = save(figure, path)
    return drawn


def _line(axis: Any, model: str, rows: Sequence[dict[str, Any]], color: str) -> None:
    ordered = sorted(rows, key=lambda row: float(row["ceiling_bytes"]))
    ceilings = [row["ceiling_bytes"] / GIB for row in ordered]
    speeds = [row["tokens_per_second"] for row in ordered]
    middle = [speed["median"] for speed in speeds]
    low = [speed["median"] - speed["min"] for speed in speeds]
    high = [speed["max"] - speed["median"] for speed in speeds]
    size = ordered[0]["weight_bytes"] / 1e9
    axis.errorbar(
        ceilings, middle, yerr=[low, high], color=color, marker="o", markersize=4, capsize=3,
        linewidth=1.6, label=f"{model}, {size:.3g} GB of weights",
    )  # fmt: skip
    # The first one's word stands below, since the next ceiling may lie right beside it.
    for number, (row, x, speed) in enumerate(zip(ordered, ceilings, speeds, strict=True)):
        y, va, up = (speed["max"], "bottom", 3) if number else (speed["min"], "top", -3)
        axis.annotate(
            row["wanted"], (x, y), textcoords="offset points", xytext=(-4, up), ha="right", va=va,
            fontsize=8, color=color,
        )  # fmt: skip
