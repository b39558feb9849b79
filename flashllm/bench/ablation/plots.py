"""An ablation as a picture: time waiting for flash and bytes per token, next to the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashllm.predictors.evaluation.plots import save

OURS, PAPER = "#0072b2", "#bbbbbb"


def draw(found: dict[str, Any], title: str, directory: Path) -> Path:
    """Writes ablation.png; bars on a logarithmic scale, since rows differ by powers of ten."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = found["rows"]
    paper = [row["paper"] or {} for row in rows]
    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        waiting, moved = figure.subplots(1, 2, sharey=True)
        spreads = [row["io_seconds"] for row in rows]
        middle = [spread["median"] * 1e3 for spread in spreads]
        low = [(spread["median"] - spread["min"]) * 1e3 for spread in spreads]
        high = [(spread["max"] - spread["median"]) * 1e3 for spread in spreads]
        _bars(waiting, middle, high, [row.get("io_ms") for row in paper], "I/O, ms a token")
        waiting.errorbar(middle, [i - 0.2 for i in range(len(rows))], xerr=[low, high],
                         fmt="none", ecolor="black", capsize=2)  # fmt: skip
        bytes_moved = [row["bytes_a_token"]["median"] / 1e9 for row in rows]
        theirs = [row.get("read_gb") for row in paper]
        _bars(moved, bytes_moved, [0.0] * len(rows), theirs, "GB a token")
        waiting.set_yticks(range(len(rows)), [row["title"] for row in rows])
        waiting.invert_yaxis()
        figure.legend(*moved.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        figure.suptitle(f"{title}: what each part of the method saves", parse_math=False)
        path: Path = save(figure, directory / "ablation.png")
        return path


def _bars(
    axes: Any, ours: list[float], above: list[float], paper: list[float | None], label: str
) -> None:
    """Bars for ours and the paper's; each number is placed right of its bar and of `above`."""
    axes.barh([i - 0.2 for i in range(len(ours))], ours, 0.38, color=OURS, label="here")
    known = [(i, value) for i, value in enumerate(paper) if value]
    if known:
        axes.barh([i + 0.2 for i, _ in known], [value for _, value in known], 0.38, color=PAPER,
                  label="the paper, on its machine")  # fmt: skip
    for i, value in enumerate(ours):
        axes.text((value + above[i]) * 1.2, i - 0.2, _number(value), va="center", ha="left")
    for i, value in known:
        axes.text(value * 1.2, i + 0.2, _number(value), va="center", ha="left", color="#777777")
    axes.set_xscale("log")
    axes.set_xlabel(label)
    everything = [*ours, *(value for _, value in known)]
    axes.set_xlim(min(everything) / 3, max(everything) * 6)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
