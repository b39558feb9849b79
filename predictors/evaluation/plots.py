"""The report as pictures: the paper's figures 3a, 4a and 5 for this model, and errors by layer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashllm.errors import CannotCreate, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 120
COLORS = {"oracle": "#0072b2", "predicted": "#d55e00", "gate": "#009e73", "dense": "#555555"}


def require_matplotlib() -> None:
    """`UsageError` where pictures cannot be drawn; worth a call before any long work."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; install it with `pip install 'flashllm[bench]'`")


def make_directory(directory: Path) -> None:
    """The directory for pictures; `CannotCreate` where there can be none."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCreate(f"{directory}: cannot be created: {error.strerror}") from error


def save(figure: Any, path: Path) -> Path:
    """Writes a picture, and returns where; `CannotCreate` where it cannot be written."""
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise CannotCreate(f"{path}: cannot be written: {error.strerror}") from error
    return path


def draw_text(text: dict[str, Any], title: str, directory: Path) -> list[Path]:
    """Pictures of what `evaluate_text` found, as PNG files; none for a model that is not sparse."""
    if "windows" not in text:
        return []
    from matplotlib import rc_context

    pictures: dict[str, Callable[[dict[str, Any]], Figure]] = {
        "windows": _windows,
        "layers": _layers,
        "margins": _margins,
        "friends": _friends,
    }
    paths = []
    for name, draw in pictures.items():
        with rc_context({"axes.titlesize": 10, "figure.titlesize": 10}):
            figure = draw(text)
            figure.suptitle(title, color="#555555", parse_math=False)
            paths.append(save(figure, directory / f"{name}.png"))
    return paths


def _figure(columns: int, rows: int = 1, width: float = 9.0, height: float = 4.0) -> Any:
    # A figure without pyplot needs no display, keeps no state, and draws by Agg.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _windows(text: dict[str, Any]) -> Figure:
    figure, axes = _figure(2)
    held, loaded = axes[0]
    for name, found in text["windows"].items():
        windows = np.arange(1, len(found["mean_share_held"]) + 1)
        style = {"color": COLORS[name], "label": name, "linewidth": 1.8}
        held.plot(windows, 100 * np.array(found["mean_share_held"]), **style)
        loaded.plot(windows, 100 * np.array(found["mean_share_loaded"]), **style)
    held.set(
        title="Neurons that the last k tokens use, s_agg(k)",
        xlabel="window k, tokens",
        ylabel="% of a layer, mean of the layers",
    )
    loaded.set(
        title="Neurons that a token adds, s_agg(k+1) − s_agg(k)",
        xlabel="window k, tokens",
    )
    for axis in axes[0]:
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.legend(frameon=False)
    return figure  # type: ignore[no-any-return]


def _layers(text: dict[str, Any]) -> Figure:
    layers = text["layers"]
    places = np.arange(len(layers))
    panels = [("Neurons", [("active", "active", "oracle")])]
    if "false_negatives" in layers[0]:
        panels[0][1].append(("chosen", "selected", "predicted"))
        panels.append(("False negatives of the active", [("false_negatives", "", "predicted")]))
        panels.append(("False positives of the inactive", [("false_positives", "", "predicted")]))
    figure, axes = _figure(len(panels), width=3.2 * len(panels) + 1.2, height=3.6)
    for axis, (title, bars) in zip(axes[0], panels, strict=True):
        width = 0.8 / len(bars)
        for number, (name, label, color) in enumerate(bars):
            values = [100 * layer[name] for layer in layers]
            shift = (number - (len(bars) - 1) / 2) * width
            axis.bar(places + shift, values, width, color=COLORS[color], label=label or None)
            if len(bars) == 1 and title != "Neurons":
                mean = float(np.mean(values))
                axis.axhline(mean, color="#333333", linewidth=1.0, linestyle="--")
                title = f"{title}: {mean:.2f} %"
        axis.set(title=title, xlabel="layer", ylabel="%")
        axis.grid(visible=False, axis="x")
        _whole_numbers(axis)
        if len(bars) > 1:
            axis.legend(frameon=False)
    return figure  # type: ignore[no-any-return]


def _margins(text: dict[str, Any]) -> Figure:
    margins = text["margins"]
    shown = _spread_over(len(margins), 4)
    figure, axes = _figure(len(shown), width=3.0 * len(shown) + 0.6, height=3.4)
    for axis, layer in zip(axes[0], shown, strict=True):
        active, missed = margins[layer]["active"], margins[layer]["false_negatives"]
        edge = (active["quantiles"]["q90"] or 1.0) * 1.5
        edges = np.linspace(0.0, edge, 61)
        counts = _rebinned(active, edges)
        axis.stairs(counts, edges, fill=True, color=COLORS["oracle"], alpha=0.35, label="active")
        if missed is not None and missed["count"]:
            axis.stairs(
                _rebinned(missed, edges),
                edges,
                fill=True,
                color=COLORS["predicted"],
                label="missed",
            )
        axis.set(title=f"layer {layer}", xlabel="pre-activation", xlim=(0, edge))
        axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 4))
    axes[0][0].set_ylabel("neurons, over all tokens")
    axes[0][-1].legend(frameon=False)
    return figure  # type: ignore[no-any-return]


def _rebinned(histogram: dict[str, Any], edges: Any) -> Any:
    """Counts between linear edges, those between logarithmic ones taken as even within each."""
    counts = np.array(histogram["counts"], np.float64)
    powers = histogram["lowest_log2"] + histogram["step_log2"] * np.arange(len(counts) + 1)
    running = np.concatenate([[0.0], np.cumsum(counts)])
    return np.diff(np.interp(edges, 2.0**powers, running, left=0.0))


def _friends(text: dict[str, Any]) -> Figure:
    from matplotlib import colormaps

    friends = text["friends"]
    figure, axes = _figure(2)
    together, concentration = axes[0]
    known = [number for number, layer in enumerate(friends) if layer["closest_most"] is not None]
    shown = [known[place] for place in _spread_over(len(known), 6)]
    colors = colormaps["viridis"](np.linspace(0.0, 0.85, len(shown)))
    for layer, color in zip(shown, colors, strict=True):
        ranks = friends[layer]["rank"]
        together.plot(
            [int(rank) for rank in ranks],
            [100 * spread["mean"] for spread in ranks.values()],
            marker="o",
            markersize=4,
            color=color,
            label=f"layer {layer}",
        )
    together.set(
        title="How often a neuron's closest friends come along",
        xlabel="closest friend: the 1st, 2nd, …",
        ylabel="% of the neuron's uses, mean",
        ylim=(0, 102),
    )
    if shown:
        together.legend(frameon=False, fontsize=8, ncols=2)
    places = np.arange(len(friends))
    most = [100 * (layer["closest_most"] or 0.0) for layer in friends]
    concentration.bar(places, most, 0.7, color=COLORS["predicted"])
    concentration.set(
        title="Neurons that share one closest friend",
        xlabel="layer",
        ylabel="% of the sampled neurons",
        ylim=(0, 102),
    )
    concentration.grid(visible=False, axis="x")
    _whole_numbers(concentration)
    return figure  # type: ignore[no-any-return]


def _whole_numbers(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _spread_over(count: int, shown: int) -> Sequence[int]:
    """At most `shown` of the numbers below `count`, including the first and the last."""
    places = np.linspace(0, count - 1, min(count, shown)).round().astype(int)
    return [int(place) for place in places]
