"""`flashllm inspect similarity`: what guessing a layer's queries ahead rests on, on a text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import add_model, add_options, argument
from flashllm.cli.shared.interrupt import RunningModel, run_interruptibly
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.cli.shared.texts import read_id_passages
from flashllm.errors import UsageError
from flashllm.settings.options import MODEL_OPTIONS
from flashllm.settings.values import parse_positive, parse_share

DECODED_MIN = 16
SIMILARITY_EXAMPLES = """\
examples:
  flashllm inspect similarity ~/big.flash --text notes.txt
  flashllm inspect similarity ~/big.flash --text notes.txt --tokens 4096 -c 4096 --json

For each layer: how alike its input is to what was known a layer earlier; how many tokens its
attention looks at; and what share of that attention is on the best 5, 10 and 20 % of the tokens,
found by its own queries or by guessed ones, with whole keys or with an index of them. Where the
guess is what loses, the layers before change the stream much; where the index is, calibrate the
model.
"""


def similarity(arguments: argparse.Namespace) -> int:
    """Measures and prints tables or one JSON object; 130 after Ctrl-C, with what there is."""
    directory = open_model.model_directory(arguments.model)
    options = open_model.options_of(arguments)
    passages = []
    for ids in read_id_passages(arguments.text, directory, arguments.tokens, arguments.ctx_size):
        prompt = max(1, int(arguments.prompt_share * len(ids)))
        if len(ids) - prompt >= DECODED_MIN:
            passages.append((ids, prompt))
    if not passages:
        raise UsageError(
            f"{arguments.text}: no passage of it has {DECODED_MIN} tokens to decode; give a longer"
            " text, or a smaller --prompt-share"
        )
    longest = max(len(ids) for ids, _ in passages)
    # Room for two indexes: the copy of all columns is larger than both.
    options = options.having(context=options.context or longest + 1, kv_policy="specache")
    found: dict[str, Any] = {}
    running, ticker = RunningModel(), Ticker()

    def work() -> None:
        from flashllm.bench.header import run_header
        from flashllm.bench.kv.runs import KvPassage
        from flashllm.bench.similarity.measure import measure
        from flashllm.library import open as library_open

        total, done = sum(len(ids) for ids, _ in passages), 0

        def on_tokens(tokens: int) -> bool:
            nonlocal done
            done += tokens
            ticker.show(f"{done:,} of {total:,} tokens")
            return running.is_stopped

        with library_open.open_directory(directory, options, contexts=2) as model:
            running.model = model
            for caution in model.cautions():
                remark(caution)
            own = [KvPassage(ids, prompt) for ids, prompt in passages]
            try:
                rows = measure(model.decoder, own, options.kv_selection, on_tokens)
            finally:
                running.model = None
            settings = {
                "text": str(arguments.text),
                "tokens": total,
                "passages": len(passages),
                "skewed": model.decoder.is_skewed,
            }
            found.update(
                header=run_header(directory, settings), complete=not running.is_stopped, layers=rows
            )

    interruption = run_interruptibly(work, running, ticker.clear)
    if arguments.json:
        Output().json(found)
    else:
        from flashllm.bench.similarity.measure import tables

        Output().write(tables(found["layers"]))
    if not found["complete"]:
        remark("interrupted; the report is of the tokens that were decoded until then")
        return interruption.exit_code
    return 0


def add_similarity_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `inspect similarity`."""
    add_model(parser)
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
    parser.add_argument("--json", action="store_true", help="one JSON object with every number")
    left_out = ("policy", "window", "kv_policy", "kv_budget", "keep_kv")
    add_options(parser, "model", tuple(o for o in MODEL_OPTIONS if o.name not in left_out))
