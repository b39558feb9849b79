"""`flashllm convert` and `flashllm reorder`: make a converted model."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import Output
from flashllm.library.open import usual_destination
from flashllm.settings.values import parse_number


def convert(arguments: argparse.Namespace) -> int:
    """Converts as the arguments ask and prints where the model is."""
    from flashllm.convert import convert as convert_checkpoint

    arguments.source = open_model.checkpoint_directory(arguments.source)
    if arguments.destination is None:
        arguments.destination = usual_destination(arguments.source)
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
            progress=open_model.terminal_progress(arguments.progress),
        )
    return _say_where(arguments)


def reorder(arguments: argparse.Namespace) -> int:
    """Rewrites the model in another order and prints where it is."""
    from flashllm.convert import reorder as reorder_model

    arguments.source = open_model.model_directory(arguments.source)
    with _stopped_like_ctrl_c():
        reorder_model(
            arguments.source,
            arguments.destination,
            calibration=arguments.calibration,
            progress=open_model.terminal_progress(arguments.progress),
        )
    return _say_where(arguments)


def _say_where(arguments: argparse.Namespace) -> int:
    output = Output()
    output.write(str(arguments.destination))
    output.end_line()
    return 0


@contextlib.contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Context manager in which signals to end clean up like Ctrl-C, since gigabytes may be there.

    Signals that are ignored, as under nohup, stay ignored.
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


PROGRESS_KINDS = ("auto", "plain", "jsonl", "none")
"""As in `flashllm.progress`, which is not loaded for `--help`."""
CONVERT_EXAMPLES = """\
examples:
  flashllm convert org/big --predictors train              # from the Hugging Face cache
  flashllm convert ~/big ~/big.flash --predictors train
  flashllm convert ~/big ~/big.flash --dtype bf16 --predictors none
  flashllm convert ~/big ~/big.flash --dtype int8 --predictors train      # half of 16 bits
  flashllm convert ~/big ~/big.flash --dtype int4 --resident-dtype int8 --predictor-dtype int8
"""
REORDER_EXAMPLES = """\
examples:
  flashllm reorder ~/big.flash ~/big.ordered --calibration some-text.txt
"""


def add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    """What `convert` takes."""
    from flashllm.dtypes import PREDICTOR_DTYPES  # later, as the chat starts faster without it

    parser.add_argument(
        "source",
        metavar="SRC",
        help="directory of the checkpoint, or ORG/NAME[@REVISION] of the Hugging Face cache"
        " (`flashllm ls --checkpoints`)",
    )
    parser.add_argument(
        "destination",
        nargs="?",
        type=Path,
        metavar="DST",
        help="directory to create (default: NAME.flash among the models that `flashllm ls` finds)",
    )
    add_reading(parser)
    parser.add_argument(
        "--predictors",
        default="none",
        metavar="none|train|checkpoint|PATH",
        help="(lossy) guess which neurons will be active: with predictors trained now, those in "
        "the checkpoint, or those in a predictors.safetensors or a folder of model_0.pt, ... "
        "(default: none)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="text to train predictors on, to measure what neurons do, and to order them by",
    )
    parser.add_argument(
        "--predictor-dtype",
        choices=PREDICTOR_DTYPES,
        help="encoding of the predictors (default: f16, or as they are where they exist)",
    )
    parser.add_argument(
        "--order",
        choices=("none", "coactivation"),
        default="none",
        help="of neurons on flash: the checkpoint's, or those together that the calibration text "
        "needs together, so that fewer and larger reads are made (default: none)",
    )
    add_progress(parser)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Adds options that complete or correct a checkpoint's config.json."""
    from flashllm.dtypes import DTYPES

    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="encoding of the weights; int8 and int4 are rounded (default: the source's)",
    )
    parser.add_argument(
        "--resident-dtype",
        choices=DTYPES,
        help="of those that stay in memory: attention, embeddings, head (default: as --dtype)",
    )
    parser.add_argument(
        "--act", metavar="NAME", help="its activation, where config.json is wrong about it: relu"
    )
    parser.add_argument(
        "--fatrelu-threshold",
        type=argument(parse_number),
        metavar="T",
        help="what a gate must exceed to be kept (default: the source's)",
    )


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Adds `--progress`, which writes to standard error."""
    parser.add_argument(
        "--progress",
        choices=PROGRESS_KINDS,
        default="auto",
        help="on standard error: a bar on a terminal and lines elsewhere (auto), lines (plain), a "
        "JSON object a line (jsonl), or none",
    )


def add_reorder_arguments(parser: argparse.ArgumentParser) -> None:
    """What `reorder` takes."""
    parser.add_argument("source", metavar="MODEL", help="a converted model, by name or directory")
    parser.add_argument("destination", type=Path, metavar="DST", help="directory to create")
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="text from which to learn which neurons are used together",
    )
    add_progress(parser)
