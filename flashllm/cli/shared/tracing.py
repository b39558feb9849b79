"""`--trace FILE`: what was computed and read at which moment, for a viewer or as a picture."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.shared.output import remark
from flashllm.errors import CannotCreate
from flashllm.units import format_count

if TYPE_CHECKING:
    from flashllm.engine.local import Model

PICTURE = ".png"


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Adds the flag."""
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write what was computed and read at which moment: JSON for Perfetto and Chrome's"
        " viewer, or a picture of the last second if FILE ends in .png",
    )


def check_trace(file: Path | None) -> None:
    """Errors that are known before anything is computed: `CannotCreate`, `UsageError`."""
    if file is None:
        return
    if file.suffix == PICTURE:
        from flashllm.telemetry.trace_plot import require_matplotlib

        require_matplotlib()
    if file.is_dir() or not file.absolute().parent.is_dir():
        what = "is a directory" if file.is_dir() else "its directory does not exist"
        raise CannotCreate(f"{file}: {what}; name a file for the trace")


@contextlib.contextmanager
def traced(model: Model, file: Path | None) -> Iterator[None]:
    """Context manager that traces a model, then writes the file and says so; `CannotCreate`."""
    if file is None:
        yield
        return
    with model.trace() as trace:
        yield
    if file.suffix == PICTURE:
        from flashllm.telemetry.trace_plot import draw

        draw(trace, file)
    else:
        trace.write(file)
    reads = format_count(len(trace.reads))
    remark(f"{file}: {format_count(len(trace.steps))} steps and {reads} reads")
