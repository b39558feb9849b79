"""`flashllm convert` and `flashllm reorder`: a converted model of a checkpoint, or of another."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator

from flashllm.commands import opening
from flashllm.commands.output import Output


def convert(arguments: argparse.Namespace) -> int:
    """Converts as the arguments ask and prints where the model is."""
    from flashllm.convert import convert as convert_checkpoint

    with _stopped_like_ctrl_c():
        convert_checkpoint(
            arguments.source,
            arguments.destination,
            dtype=arguments.dtype,
            act=arguments.act,
            fatrelu_threshold=arguments.fatrelu_threshold,
            predictors=arguments.predictors,
            calibration=arguments.calibration,
            resident_dtype=arguments.resident_dtype,
            predictor_dtype=arguments.predictor_dtype,
            order=arguments.order,
            progress=opening.terminal_progress(arguments.progress),
        )
    return _say_where(arguments)


def reorder(arguments: argparse.Namespace) -> int:
    """Writes the model in another order and prints where it is."""
    from flashllm.convert import reorder as reorder_model

    with _stopped_like_ctrl_c():
        reorder_model(
            arguments.source,
            arguments.destination,
            calibration=arguments.calibration,
            progress=opening.terminal_progress(arguments.progress),
        )
    return _say_where(arguments)


def _say_where(arguments: argparse.Namespace) -> int:
    output = Output()
    output.write(str(arguments.destination))
    output.end_line()
    return 0


@contextlib.contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Within it, being told to end cleans up as Ctrl-C does: gigabytes may lie there by then.

    What is ignored, as under nohup, stays ignored.
    """
    signals = (signal.SIGTERM, signal.SIGHUP)
    changed = [number for number in signals if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
