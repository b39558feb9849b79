"""Flags that say how prompts are read, and where answers stop: of `run` and `batch`."""

from __future__ import annotations

import argparse

from flashllm.errors import UsageError


def add_prompt_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--system`, `--raw` and `--stop`."""
    parser.add_argument("-s", "--system", default="", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--raw",
        action="store_true",
        help="no chat template: continue the text (so it is for models without a template)",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before TEXT; repeatable",
    )


def check_prompt_flags(arguments: argparse.Namespace) -> None:
    """`UsageError` for flags of these that contradict each other."""
    if arguments.raw and arguments.system:
        raise UsageError("--system needs a chat template, which --raw turns off")
