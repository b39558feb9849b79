"""`flashllm inspect similarity`: what guessing a layer's queries ahead rests on, on a text."""

from __future__ import annotations

import argparse
from typing import Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.decoded_text import add_decoded_text, read_decoded_passages
from flashllm.cli.shared.flags import add_model, add_options
from flashllm.cli.shared.interrupt import RunningModel, run_interruptibly
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.settings.options import MODEL_OPTIONS

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
    passages = read_decoded_passages(arguments, directory)
    longest = max(len(passage.ids) for passage in passages)
    # Room for two indexes: the copy of all columns is larger than both.
    options = options.having(context=options.context or longest + 1, kv_policy="specache")
    found: dict[str, Any] = {}
    running, ticker = RunningModel(), Ticker()

    def work() -> None:
        from flashllm.bench.header import run_header
        from flashllm.bench.similarity.measure import measure
        from flashllm.library import open as library_open

        total, done = sum(len(passage.ids) for passage in passages), 0

        def on_tokens(tokens: int) -> bool:
            nonlocal done
            done += tokens
            ticker.show(f"{done:,} of {total:,} tokens")
            return running.is_stopped

        with library_open.open_directory(directory, options, contexts=2) as model:
            running.model = model
            for caution in model.cautions():
                remark(caution)
            try:
                rows = measure(model.decoder, passages, options.kv_selection, on_tokens)
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
    add_decoded_text(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object with every number")
    left_out = ("policy", "window", "kv_policy", "kv_budget", "keep_kv")
    add_options(parser, "model", tuple(o for o in MODEL_OPTIONS if o.name not in left_out))
