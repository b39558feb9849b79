"""`flashllm convert`: a checkpoint to a converted model."""

from __future__ import annotations

import argparse

from flashllm.commands import opening
from flashllm.commands.output import Output


def convert(arguments: argparse.Namespace) -> int:
    """Converts as the arguments ask and prints where the model is."""
    from flashllm.convert import convert as convert_checkpoint

    convert_checkpoint(
        arguments.source,
        arguments.destination,
        dtype=arguments.dtype,
        act=arguments.act,
        fatrelu_threshold=arguments.fatrelu_threshold,
        predictors=arguments.predictors,
        calibration=arguments.calibration,
        progress=opening.terminal_progress(),
    )
    output = Output()
    output.write(str(arguments.destination))
    output.end_line()
    return 0
