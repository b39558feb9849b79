"""What `run` takes."""

from __future__ import annotations

import argparse

from flashllm.commands.options import (
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    SESSION_OPTIONS,
    add_model,
    add_options,
    argument,
    parse_ids,
)

RUN_EXAMPLES = """\
examples:
  flashllm run -p "What does ocean mean?"
  flashllm run ~/big.flash -p "The capital of France is" --raw -n 20 --memory 6GiB
  cat notes.txt | flashllm run -p "Summarise this."     # standard input goes before the text
  flashllm run -p "Summarise this." -f notes.txt        # and so does a file
  flashllm run -p "Define river." --save                # keep it; the chat finds it too
  flashllm run -p "And sea?" --continue                 # go on with the latest conversation
  flashllm run --continue                               # and with its answer that was stopped
  flashllm run -p "Define river." --json | jq .decode.tokens_per_second
"""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `run`."""
    add_model(parser)
    parser.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the prompt; `-`, or a pipe, is standard input"
    )
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="text that comes before that of -p, or is the prompt"
    )
    parser.add_argument("-s", "--system", default="", metavar="TEXT", help="what comes before it")
    parser.add_argument(
        "--ids", type=argument(parse_ids), metavar="IDS", help="the prompt as token ids: 1,2,3"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="no chat template: continue the text (so it is for models without a template)",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end there; repeatable"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object with every number")
    form.add_argument("--jsonl", action="store_true", help="one JSON object per token, then a sum")
    form.add_argument("--no-stream", action="store_true", help="print when all is there")
    parser.add_argument(
        "--stats", action="store_true", help="what the answer cost, at the end (standard error)"
    )
    add_options(parser, "conversation", SESSION_OPTIONS)
    parser.add_argument(
        "--save", action="store_true", help="keep question and answer as a new conversation"
    )
    add_options(parser, "answers", SAMPLING_OPTIONS)
    add_options(parser, "model", MODEL_OPTIONS)
