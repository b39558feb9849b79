"""What `ls` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashllm.commands.options import CHAT_OPTIONS, MODEL_OPTIONS, add_options
from flashllm.settings.options import MODEL

LS_EXAMPLES = """\
examples:
  flashllm ls                                   the demo, and models in the usual places
  flashllm ls /mnt/ssd --memory 8GiB            those in a directory too, in 8 GiB
  flashllm ls --checkpoints                     what could be converted: the Hugging Face cache
"""
_OPTIONS = ("memory", "ctx_size", "kv_dtype")


def add_ls_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `ls`."""
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="look there too: a model, or a directory of models",
    )
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="list the checkpoints in the Hugging Face cache instead, convertible or why not",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = tuple(option for option in MODEL_OPTIONS if option.name in _OPTIONS)
    folders = tuple(option for option in CHAT_OPTIONS if option.name == "model_dirs")
    add_options(parser, "model", (*options, *folders, MODEL))
