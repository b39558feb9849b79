"""What `chat` takes."""

from __future__ import annotations

import argparse

from flashllm.commands.options import (
    CHAT_OPTIONS,
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    SESSION_OPTIONS,
    add_model,
    add_options,
)

CHAT_EXAMPLES = """\
examples:
  flashllm chat
  flashllm chat ~/big.flash --memory 8GiB --temp 0.7
  flashllm chat --continue                      the latest conversation, where it was left
  flashllm chat --inline --no-save              in a part of the terminal; nothing is kept
"""


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `chat`."""
    add_model(parser)
    add_options(parser, "conversation", (*SESSION_OPTIONS, *CHAT_OPTIONS))
    add_options(parser, "answers", SAMPLING_OPTIONS)
    add_options(parser, "model", MODEL_OPTIONS)
