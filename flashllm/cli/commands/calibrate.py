"""`flashllm calibrate`: measures a text, so that long contexts fetch less of keys and values."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import add_model, argument, parse_positive
from flashllm.cli.shared.output import Output, Ticker
from flashllm.cli.shared.texts import read_id_passages

TOKENS = 2048
CALIBRATE_EXAMPLES = """\
examples:
  flashllm calibrate ~/big.flash --text notes.txt
  flashllm run ~/big.flash --kv-policy infinigen -c 32768 -f long.txt

What it writes, skewing.safetensors in the model's directory, is used with --kv-policy infinigen.
It changes no product of a query and a key; it lets few columns of the keys tell which matter.
"""


def calibrate(arguments: argparse.Namespace) -> int:
    """Writes the model's skewing file, and says where it is."""
    directory = open_model.model_directory(arguments.model)
    passages = read_id_passages(arguments.text, directory, arguments.tokens)
    from flashllm.predictors.skewing import skew_model

    total, done, ticker = sum(map(len, passages)), 0, Ticker()

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        ticker.show(f"calibrating: {done:,} of {total:,} tokens")

    try:
        path, tokens = skew_model(directory, passages, report)
    finally:
        ticker.clear()
    if arguments.json:
        Output().json({"file": str(path), "bytes": path.stat().st_size, "tokens": tokens})
    else:
        Output().write(f"wrote {path}, from {tokens:,} tokens\n")
    return 0


def add_calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `calibrate`."""
    add_model(parser)
    parser.add_argument(
        "--text",
        type=Path,
        required=True,
        metavar="FILE",
        help="a text like those that the model will see (.txt, .jsonl or .ids)",
    )
    parser.add_argument(
        "--tokens",
        type=argument(parse_positive),
        default=TOKENS,
        metavar="N",
        help=f"tokens of the text, taken evenly from all of its lines ({TOKENS})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
