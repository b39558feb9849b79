"""What `eval` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashllm.commands.options import (
    MODEL_OPTIONS,
    add_model,
    add_options,
    argument,
    parse_count,
    parse_positive,
)

EVAL_EXAMPLES = """\
examples:
  flashllm eval                                 the demo, on its own text and questions
  flashllm eval ~/big.flash --text notes.txt --plot pictures
  flashllm eval ~/big.flash --tasks questions.jsonl --limit 200 --json

TEXT: .txt; .jsonl with a conversation a line, whose answers count; .ids with token ids a line.
TASKS: .jsonl, a question a line, scored dense and as selected, side by side:
  {"query": "The sea is", "choices": ["wet", "dry"], "answer": 0}      the likelier choice
  {"messages": [{"role": "user", "content": "..."}], "expected": "..."}    the greedy answer
"""


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `eval`."""
    add_model(parser)
    parser.add_argument(
        "--text", type=Path, metavar="TEXT", help="perplexity, errors and window use on a text"
    )
    parser.add_argument(
        "--tasks",
        type=Path,
        action="append",
        default=[],
        metavar="TASKS",
        help="right answers to questions; repeatable",
    )
    count = argument(parse_positive)
    parser.add_argument(
        "--tokens",
        type=count,
        default=20_000,
        metavar="N",
        help="of the text, evenly from all of its lines (20000)",
    )
    parser.add_argument(
        "--skip",
        type=argument(parse_count),
        default=0,
        metavar="N",
        help="tokens at the start of each passage that are given, not counted (0)",
    )
    parser.add_argument(
        "--all-tokens", action="store_true", help="in conversations, count questions too"
    )
    parser.add_argument(
        "--limit",
        type=count,
        metavar="N",
        help="questions of each file, evenly from all of it (all; 400 where nothing is asked for)",
    )
    parser.add_argument(
        "--seed",
        type=argument(parse_count),
        default=0,
        metavar="N",
        help="of the sample of neurons whose friends are looked for (0)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object with every number")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="draw PNG pictures there (needs matplotlib)"
    )
    options = tuple(option for option in MODEL_OPTIONS if option.name in ("select", "kv_dtype"))
    add_options(parser, "model", options)
