"""Options of `convert` and `reorder`."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashllm.commands.options import argument, parse_number

PROGRESS_KINDS = ("auto", "plain", "jsonl", "none")
"""As in `flashllm.convert.progress`, which is not loaded for `--help`."""
CONVERT_EXAMPLES = """\
examples:
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
    from flashllm.spec import PREDICTOR_DTYPES  # later, as the chat starts faster without it

    parser.add_argument("source", type=Path, metavar="SRC", help="directory of the checkpoint")
    parser.add_argument("destination", type=Path, metavar="DST", help="directory to create")
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
    """How a checkpoint is to be understood, where its config.json does not say or says wrong."""
    from flashllm.spec import DTYPES

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
    """How far the work is, on standard error."""
    parser.add_argument(
        "--progress",
        choices=PROGRESS_KINDS,
        default="auto",
        help="on standard error: a bar on a terminal and lines elsewhere (auto), lines (plain), a "
        "JSON object a line (jsonl), or none",
    )


def add_reorder_arguments(parser: argparse.ArgumentParser) -> None:
    """What `reorder` takes."""
    parser.add_argument("source", type=Path, metavar="SRC", help="a converted model")
    parser.add_argument("destination", type=Path, metavar="DST", help="directory to create")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="text that says what is needed together"
    )
    add_progress(parser)
