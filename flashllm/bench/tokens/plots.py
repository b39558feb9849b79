"""Pictures of `flashllm bench tokens`: where each token's time and bytes went, and the reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashllm.bench.tokens.samples import COLD, WARM, RunSample, TokenSample
from flashllm.predictors.evaluation.plots import save
from flashllm.system.clock import PARTS
from flashllm.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (
    "#56b4e9", "#999999", "#d55e00", "#e69f00", "#009e73", "#0072b2", "#cc79a7", "#f0e442",
    "#444444",
)  # fmt: skip


def draw(report: dict[str, Any], runs: Sequence[RunSample], directory: Path) -> list[Path]:
    """PNG files of the runs that the report's summary is of; none where no token was decoded."""
    kind = report["summary"]["measured"]
    shown = [run for run in runs if run.kind == kind and run.tokens]
    if not shown:
        return []
    from matplotlib import rc_context

    flash = report["summary"]["flash"]
    pictures: dict[str, Callable[[], Figure]] = {
        "parts": lambda: _parts(shown),
        "bytes": lambda: _bytes(shown),
        "latency": lambda: _latency(flash["latency_ns"]),
        "sizes": lambda: _sizes(flash["read_sizes"]),
    }
    paths = []
    for name, make in pictures.items():
        with rc_context({"axes.titlesize": 10, "figure.titlesize": 10}):
            figure = make()
            figure.suptitle(_title(report), color="#555555", parse_math=False)
            paths.append(save(figure, directory / f"tokens-{name}.png"))
    return paths


def _title(report: dict[str, Any]) -> str:
    header, settings = report["header"], report["header"]["settings"]
    synthetic = ", SYNTHETIC: made-up weights" if header["synthetic"] else ""
    kinds = {WARM: "warm runs", COLD: "the first run after opening"}
    cut = "" if report["complete"] else ", interrupted"
    return (
        f"{header['model']['name']}{synthetic}: {settings['select']}, window {settings['window']},"
        f" ceiling {settings['ceiling_bytes'] / MIB:,.0f} MiB; "
        f"{kinds[report['summary']['measured']]}{cut}"
    )


def _figure(rows: int = 1, height: float = 4.0) -> Any:
    # A figure without pyplot needs no display, keeps no state, and draws by Agg.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axis in axes:
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _by_index(runs: Sequence[RunSample], value: Callable[[TokenSample], float]) -> Any:
    """Means over the runs of a value of each token, by its place: [tokens]. Means add up."""
    longest = max(len(run.tokens) for run in runs)
    found: list[list[float]] = [[] for _ in range(longest)]
    for run in runs:
        for token in run.tokens:
            found[token.index].append(value(token))
    return np.array([np.mean(values) for values in found])


def _parts(runs: Sequence[RunSample]) -> Figure:
    figure, (axis,) = _figure()

    def part_ms(part: str) -> Any:
        return _by_index(runs, lambda t: t.cost.parts_ns[part] / 1e6 if t.cost else 0.0)

    # Largest at the bottom, so that what matters is read off the axis.
    heights = {part: part_ms(part) for part in PARTS}
    order = sorted(PARTS, key=lambda part: -float(heights[part].sum()))
    tokens = np.arange(len(heights[PARTS[0]]))
    colors = dict(zip(PARTS, COLORS, strict=True))
    axis.stackplot(
        tokens,
        [heights[part] for part in order],
        labels=order,
        colors=[colors[part] for part in order],
        step="mid",
    )
    wall = _by_index(runs, lambda token: token.wall_ns / 1e6)
    axis.plot(tokens, wall, color="#000000", linewidth=1.0, label="wall", drawstyle="steps-mid")
    axis.set(title="Time of each token, by part (means over the runs)", xlabel="token",
             ylabel="ms", xlim=(-0.5, len(tokens) - 0.5))  # fmt: skip
    axis.set_ylim(bottom=0)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], frameon=False, loc="center left",
                bbox_to_anchor=(1.0, 0.5))  # fmt: skip
    _whole_numbers(axis)
    return figure  # type: ignore[no-any-return]


def _bytes(runs: Sequence[RunSample]) -> Figure:
    figure, (read, rate) = _figure(rows=2, height=5.0)
    megabytes = _by_index(runs, lambda t: t.cost.bytes_read / 1e6 if t.cost else 0.0)
    hits = _by_index(runs, lambda t: 100 * t.cost.hit_rate if t.cost else 0.0)
    tokens = np.arange(len(megabytes))
    read.bar(tokens, megabytes, width=0.9, color="#d55e00")
    read.set(title="Read from flash for each token", ylabel="MB")
    rate.plot(tokens, hits, color="#0072b2", marker=".", linewidth=1.4)
    rate.set(title="Needed neurons that were in memory already", xlabel="token", ylabel="%")
    rate.set_ylim(top=101)
    for axis in (read, rate):
        axis.set_xlim(-0.5, len(tokens) - 0.5)
        _whole_numbers(axis)
    return figure  # type: ignore[no-any-return]


def _latency(latency: dict[str, Any]) -> Figure:
    figure, (axis,) = _figure()
    bins = latency["bins_ns"]
    if bins:
        times = np.array([first for first, _ in bins]) / 1e3
        share = np.cumsum([count for _, count in bins]) / latency["n"]
        axis.step(times, 100 * share, where="post", color="#0072b2", linewidth=1.8)
        axis.set_xscale("log")
        for name in ("p50", "p99"):
            axis.axvline(latency[name] / 1e3, color="#888888", linewidth=1.0, linestyle="--")
            axis.annotate(f" {name} {latency[name] / 1e3:,.0f} µs", (latency[name] / 1e3, 4))
    axis.set(title=f"Time of a read (n = {latency['n']:,})", xlabel="µs", ylabel="% of reads",
             ylim=(0, 101))  # fmt: skip
    return figure  # type: ignore[no-any-return]


def _sizes(sizes: dict[str, int]) -> Figure:
    figure, (axis,) = _figure()
    lows = sorted(int(size) for size in sizes)
    counts = [sizes[str(low)] for low in lows]
    places = np.arange(len(lows))
    bars = axis.bar(places, counts, width=0.7, color="#009e73")
    axis.bar_label(bars, labels=[f"{count:,}" for count in counts], fontsize=8)
    axis.set_xticks(places, [f"{low / 1024:g} KiB" for low in lows])
    axis.set(title="Reads by size (each from there to below twice as much)", ylabel="reads")
    axis.grid(visible=False, axis="x")
    return figure  # type: ignore[no-any-return]


def _whole_numbers(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
