"""The profile as pictures: throughput as a map and as curves, latencies, and passes in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.hardware.machine_profile import Profile
from flashllm.predictors.evaluation.plots import save
from flashllm.units import MIB


def draw(profile: Profile, pass_ratios: Sequence[float], directory: Path) -> list[Path]:
    """PNG pictures in an existing directory; `CannotCreate` where they cannot be written."""
    pictures: dict[str, Callable[[], Any]] = {
        "throughput": lambda: _map(profile),
        "curves": lambda: _curves(profile),
        "passes": lambda: _passes(pass_ratios),
    }
    paths = []
    for name, picture in pictures.items():
        figure = picture()
        note = "" if profile.complete else " (ended early)"
        figure.suptitle(
            f"{profile.device.name}, {profile.machine_name}{note}", fontsize=10, parse_math=False
        )
        paths.append(save(figure, directory / f"{name}.png"))
    return paths


def size_name(size: int) -> str:
    """`4 KiB`, `1 MiB`; in bytes if it is not a whole number of KiB."""
    for unit, factor in (("MiB", MIB), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _figure(columns: int, width: float, height: float) -> tuple[Any, Any]:
    # A figure without pyplot needs no display, keeps no state, and draws by Agg.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _map(profile: Profile) -> Any:
    """A map: sizes down, threads across, MB/s in each field."""
    sizes = sorted({point.read_bytes for point in profile.points})
    threads = sorted({point.threads for point in profile.points})
    rates = np.full((len(sizes), len(threads)), np.nan)
    for point in profile.points:
        place = sizes.index(point.read_bytes), threads.index(point.threads)
        rates[place] = point.bytes_per_second / 1e6
    figure, (axis,) = _figure(1, 2.2 + 0.7 * len(threads), 1.6 + 0.34 * len(sizes))
    shown = axis.imshow(rates, aspect="auto", cmap="viridis", vmin=0)
    middle = np.nanmax(rates) / 2
    for (row, column), rate in np.ndenumerate(rates):
        if not np.isnan(rate):
            color = "black" if rate > middle else "white"
            axis.text(column, row, f"{rate:.0f}", ha="center", va="center", color=color, fontsize=8)
    axis.set_xticks(range(len(threads)), labels=[str(number) for number in threads])
    axis.set_yticks(range(len(sizes)), labels=[size_name(size) for size in sizes])
    axis.set(xlabel="threads", ylabel="read size", title="Throughput")
    figure.colorbar(shown, ax=axis, label="MB/s")
    return figure


def _curves(profile: Profile) -> Any:
    """Throughput against size with its fits, and latencies against size."""
    from matplotlib import colormaps

    figure, (speed, latency) = _figure(2, 11.0, 4.4)
    threads = sorted({point.threads for point in profile.points})
    colors = colormaps["viridis"](np.linspace(0.0, 0.9, len(threads)))
    fits = {fit.threads: fit for fit in profile.fits}
    for number, color in zip(threads, colors, strict=True):
        points = sorted(
            (point for point in profile.points if point.threads == number),
            key=lambda point: point.read_bytes,
        )
        sizes = np.array([point.read_bytes for point in points])
        rates = [point.bytes_per_second / 1e6 for point in points]
        speed.plot(sizes / 1024, rates, "o-", color=color, markersize=3, label=str(number))
        if fit := fits.get(number):
            fine = np.geomspace(sizes[0], sizes[-1], 60)
            fitted = [size * 1e3 / fit.read_ns(size) for size in fine]
            speed.plot(fine / 1024, fitted, "--", color=color, linewidth=0.8)
        for name, style in (("p50", "-"), ("p99", ":")):
            times = [point.latency_ns.get(name, 0) / 1e3 for point in points]
            latency.plot(sizes / 1024, times, style, color=color)
    speed.set(title="Throughput (dashed: t = a + S/B)", ylabel="MB/s")
    latency.set(title="Latency of a read (dotted: p99)", ylabel="µs", yscale="log")
    ticks = sorted({point.read_bytes / 1024 for point in profile.points})
    for axis in (speed, latency):
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks], fontsize=8)
        axis.set_xlabel("read size, KiB")
        axis.grid(color="#dddddd", linewidth=0.6)
    speed.set_ylim(bottom=0)
    speed.legend(title="threads", frameon=False, fontsize=8)
    return figure


def _passes(pass_ratios: Sequence[float]) -> Any:
    """Each pass relative to the first; falls for a device that gets hot."""
    figure, (axis,) = _figure(1, 5.5, 3.4)
    passes = np.arange(1, len(pass_ratios) + 1)
    axis.plot(passes, [100 * ratio for ratio in pass_ratios], "o-")
    axis.axhline(100, color="#999999", linewidth=0.8)
    axis.set(xlabel="pass", ylabel="% of the first pass, median of all points", title="Passes")
    axis.set_xticks(passes)
    return figure
