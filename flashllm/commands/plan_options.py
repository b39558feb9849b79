"""What `plan` takes."""

from __future__ import annotations

import argparse

from flashllm.commands.convert_options import add_reading
from flashllm.commands.options import MODEL_OPTIONS, add_options, argument, parse_share

PLAN_EXAMPLES = """\
examples:
  flashllm plan ~/big --memory 8GiB
  flashllm plan ~/other --act relu              # a config that does not say what its weights are
  flashllm plan SHAPE --memory 16GiB            # one that is built in; an unknown name lists them
"""


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `plan`."""
    parser.add_argument(
        "model",
        metavar="SRC|MODEL|SHAPE",
        help="directory of a checkpoint (its config.json is enough) or of a converted model, or a"
        " built-in shape",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--active",
        type=argument(parse_share),
        metavar="SHARE",
        help="share of the neurons that a token uses, like 0.1 or 10%% (default: as recorded, or"
        " as usual for models of this kind)",
    )
    add_reading(parser)
    add_options(parser, "model", MODEL_OPTIONS)
