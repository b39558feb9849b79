"""A picture of a trace: the parts of the last steps, and how many reads were in flight."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import CannotCreate, UsageError
from flashllm.system.clock import PARTS
from flashllm.telemetry.step_trace import StepTrace

SHOWN_NS = 1_000_000_000
"""So much of the end is drawn."""
_COLOURS = dict(zip(PARTS, (
    "#8c6bb1", "#c7b8dd", "#e34a33", "#fdbb84", "#2b8cbe", "#31a354", "#7bccc4", "#bdbdbd",
    "#d9d9d9",
), strict=True))  # fmt: skip
_TRANSFER_COLOURS = ("#e34a33", "#2b8cbe", "#31a354")


def require_matplotlib() -> None:
    """`UsageError` where no picture can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "a picture needs matplotlib; install it with `pip install 'flashllm[bench]'`, or name"
            " a file that ends in .json"
        )


def draw(trace: StepTrace, path: Path) -> None:
    """Draws the last second of it into a PNG; `CannotCreate`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    end_ns = trace.steps[-1].end_ns if trace.steps else 0
    begin_ns = max(trace.begin_ns, end_ns - SHOWN_NS)
    figure = Figure(figsize=(14, 4), layout="constrained")
    FigureCanvasAgg(figure)
    lanes, reads = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    for name in PARTS:
        spans = [
            ((one.begin_ns - begin_ns) / 1e6, (one.end_ns - one.begin_ns) / 1e6)
            for one in trace.parts
            if one.name == name and one.end_ns > begin_ns
        ]
        lanes.broken_barh(spans, (0, 0.8), color=_COLOURS[name], linewidth=0)
    for number, step in enumerate(one for one in trace.steps if one.end_ns > begin_ns):
        at = (max(step.begin_ns, begin_ns) - begin_ns) / 1e6
        lanes.broken_barh(
            [(at, (step.end_ns - begin_ns) / 1e6 - at)],
            (1, 0.4),
            color="#666666" if number % 2 else "#aaaaaa",
        )
    lanes.set_yticks([0.4, 1.2], ["compute", "steps"])
    lanes.legend(
        handles=[Patch(color=_COLOURS[name], label=name) for name in PARTS],
        ncols=len(PARTS), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False,
    )  # fmt: skip
    for name, colour in zip(trace.transfers, _TRANSFER_COLOURS, strict=False):
        times, depths = _in_flight(trace.transfers[name])
        reads.fill_between(
            (times - begin_ns) / 1e6, depths, step="post", color=colour, alpha=0.6, label=name
        )
    if len(trace.transfers) > 1:
        reads.legend(loc="upper left", frameon=False)
    reads.set_ylabel("in flight")
    reads.set_xlabel("ms")
    reads.set_xlim(0, max((end_ns - begin_ns) / 1e6, 1e-3))
    reads.set_ylim(0)
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise CannotCreate(f"{path}: cannot be written: {error.strerror}") from error


def _in_flight(transfers: NDArray[np.int64]) -> tuple[np.ndarray, np.ndarray]:
    """Moments in ns at which the number of transfers [n, 2] in flight changed, and that number."""
    moments = np.concatenate([transfers[:, 0], transfers[:, 1]])
    changes = np.repeat([1, -1], len(transfers))
    order = np.lexsort((changes, moments))
    return moments[order], np.cumsum(changes[order])
