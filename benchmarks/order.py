"""What the order of neurons on flash gains: two converted models, interleaved, on one text.

    flashllm reorder MODEL ORDERED --calibration calibration.txt
    python -m benchmarks.order MODEL ORDERED --text heldout.txt [--gaps 0,4096,16384]

Each turn opens a model and decodes the text token by token, whatever the model would have said, so
that both read what the same tokens need; the first tokens of a context are its prompt. The text
must be one that the order was not learnt from. Options that are not given come from the profile of
the disk, as they do in `flashllm run`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashllm.predictors.model import ConvertedModel

from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.sample_statistics import Spread
from flashllm.cli.bench.options import parse_sizes
from flashllm.cli.shared.flags import argument
from flashllm.engine.loading import load_decoder
from flashllm.errors import FlashllmError, UsageError
from flashllm.flash.file_names import ORDER_FILE
from flashllm.flash.manifest import read_manifest
from flashllm.flash.store import Store
from flashllm.model.decoder import Decoder
from flashllm.progress import SilentProgress
from flashllm.settings.values import parse_positive, parse_size
from flashllm.telemetry.costs import TokenCost
from flashllm.telemetry.meter import Meter

PROMPT_TOKENS = 6
"""Of a context: more than the paper's window of five, so that it is warm."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Means over the tokens that one turn decoded."""

    reads: float
    loads: float
    amplification: float
    io_ms: float
    token_ms: float


def main() -> int:
    """Measure each model and gap in each round; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.order",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="as the checkpoint has its neurons")
    parser.add_argument("ordered", type=Path, help="the same in another order")
    parser.add_argument("--text", type=Path, required=True, help="held out: .jsonl, .txt or .ids")
    count = argument(parse_positive)
    parser.add_argument("-n", "--tokens", type=count, default=500, help="of the text (500)")
    parser.add_argument("--rounds", type=count, default=3, help="of turns (3)")
    parser.add_argument("--gaps", type=argument(parse_sizes), help="bytes read across, several")
    parser.add_argument("--memory", type=argument(parse_size), help="ceiling of the process")
    parser.add_argument(
        "--overlap", default="hits", help="as of run; guesses would read more than is needed (hits)"
    )
    parser.add_argument("--window", type=count)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    try:
        print(_report(options))
    except FlashllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _report(options: argparse.Namespace) -> str:
    """A table, then one line of JSON."""
    _check(options.model, options.ordered)
    contexts = _contexts(options.model, options.text, options.tokens)
    turns: dict[tuple[str, int | None], list[Turn]] = {}
    for number in range(options.rounds):
        pair = [("as it was", options.model), ("in order", options.ordered)]
        # Turned round each time, so that a machine that slows down favours neither.
        for name, directory in pair if number % 2 == 0 else pair[::-1]:
            for gap in options.gaps or [None]:
                turn = measure(directory, contexts, options, gap)
                turns.setdefault((name, gap), []).append(turn)
                print(f"round {number + 1}, {name}, gap {gap}: {turn}", file=sys.stderr)
    columns = [field.name for field in dataclasses.fields(Turn)]
    rows, values = [], []
    for (name, gap), found in sorted(turns.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
        spreads = {c: Spread.of([getattr(turn, c) for turn in found]) for c in columns}
        rows.append([name, "planned" if gap is None else f"{gap:,}",
                     *(f"{spreads[c].median:.3f}" for c in columns)])  # fmt: skip
        values.append({"order": name, "gap_bytes": gap,
                       "turns": [dataclasses.asdict(turn) for turn in found]})  # fmt: skip
    header = run_header(
        options.model, {"tokens": sum(map(len, contexts)), "text": options.text.name}
    )
    table = markdown([["order", "gap, bytes", *columns], *rows])
    return table + "\n" + json.dumps({"header": header, "complete": True, "rows": values})


def _check(model: Path, ordered: Path) -> None:
    """`UsageError` unless the second is the first in another order, as far as a manifest says."""
    before, after = read_manifest(model), read_manifest(ordered)
    if before.source != after.source or before.spec != after.spec:
        raise UsageError(f"{ordered}: was not made from what {model} was made from")
    if ORDER_FILE in before.files or ORDER_FILE not in after.files:
        raise UsageError("give the model as it was first, then the one in order")


def _contexts(model: Path, text: Path, tokens: int) -> list[list[int]]:
    """Contexts of the text that are longer than their prompt."""
    found = ConvertedModel(model).contexts(text, max(tokens, 1_000), 0, SilentProgress())
    kept, left = [], tokens
    for ids in found:
        if left > 0 and len(ids) > PROMPT_TOKENS + 1:
            kept.append(ids[: PROMPT_TOKENS + left])
            left -= len(kept[-1]) - PROMPT_TOKENS
    return kept


def measure(
    directory: Path, contexts: Sequence[Sequence[int]], options: argparse.Namespace, gap: int | None
) -> Turn:
    """Decode the contexts once with the model in `directory`."""
    decoder, plan, store = load_decoder(
        directory,
        memory=options.memory,
        # Keys and values for more would take the memory that slots could have.
        context=max(map(len, contexts)),
        window=options.window,
        profile=options.profile,
        overlap=options.overlap,
    )
    with store:
        if gap is not None:
            store.close()
            store.open_reader(True, plan.io_threads, gap)
        _costs(decoder, store, contexts[0])  # the first use of threads and libraries
        costs = [cost for ids in contexts for cost in _costs(decoder, store, ids)]
    tokens, useful = len(costs), sum(cost.bytes_useful for cost in costs)
    return Turn(
        reads=sum(cost.reads for cost in costs) / tokens,
        loads=sum(cost.misses for cost in costs) / tokens,
        amplification=sum(cost.bytes_read for cost in costs) / max(useful, 1),
        io_ms=sum(cost.parts_ns["io_exposed"] for cost in costs) / tokens / 1e6,
        token_ms=sum(cost.wall_ns for cost in costs) / tokens / 1e6,
    )


def _costs(decoder: Decoder, store: Store, ids: Sequence[int]) -> list[TokenCost]:
    """What each token of a context behind its prompt costs."""
    decoder.start_cold()
    decoder.prefill(ids[:PROMPT_TOKENS])
    meter = Meter(store.reader.stats, decoder.pool.counters, decoder.clock)
    costs = []
    for token in ids[PROMPT_TOKENS:]:
        meter.start()
        decoder.decode(token)
        costs.append(meter.token())
    return costs


if __name__ == "__main__":
    sys.exit(main())
