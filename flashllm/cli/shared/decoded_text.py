"""A text whose passages begin as prompts and go on token by token, as an answer does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.texts import read_id_passages
from flashllm.errors import UsageError
from flashllm.settings.values import parse_positive, parse_share

if TYPE_CHECKING:
    from flashllm.bench.kv.runs import KvPassage

DECODED_MIN = 16
"""A passage with fewer tokens behind its prompt says too little."""


def add_decoded_text(parser: argparse.ArgumentParser) -> None:
    """Arguments that say which text, how much of it, and how much of that is prompt."""
    parser.add_argument(
        "--text",
        type=Path,
        required=True,
        metavar="FILE",
        help="text to decode: .ids, .txt or .jsonl, as for eval",
    )
    parser.add_argument(
        "-n",
        "--tokens",
        type=argument(parse_positive),
        default=2048,
        metavar="N",
        help="tokens of the text, taken evenly from all of its lines (2048)",
    )
    parser.add_argument(
        "--prompt-share",
        type=argument(parse_share),
        default=0.5,
        metavar="SHARE",
        help="of each passage, what is read as a prompt; the rest is decoded token by token (50%%)",
    )


def read_decoded_passages(arguments: argparse.Namespace, directory: Path) -> list[KvPassage]:
    """The passages that these arguments ask for; `UsageError` where none is long enough."""
    from flashllm.bench.kv.runs import KvPassage

    found = []
    for ids in read_id_passages(arguments.text, directory, arguments.tokens, arguments.ctx_size):
        prompt = max(1, int(arguments.prompt_share * len(ids)))
        if len(ids) - prompt >= DECODED_MIN:
            found.append(KvPassage(ids, prompt))
    if not found:
        raise UsageError(
            f"{arguments.text}: no passage of it has {DECODED_MIN} tokens to decode; give a longer"
            " text, or a smaller --prompt-share"
        )
    return found
