"""What the second turn of a conversation reads and waits for, beside what was not in memory.

    python -m benchmarks.second_turn MODEL [--memory SIZE] [--prompt 64] [--rounds 3]

Each round begins with an empty context and empty slots. A first prompt of random tokens is
answered; then a second turn goes on with 20 new ones, as the next question of a conversation does.
Printed are its seconds to the first token, the bytes that it read (of it useful: without rounding,
and without gaps that a read spans), and the bytes of feed-forward weights that were not in slots
before it. What is in memory is not to be read again: the exit code is 1 where a second turn read
more than what was missing. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.prompt.runs import bytes_missing, random_ids
from flashllm.bench.steal_time import ProcessorTime, format_steal_share
from flashllm.cli.shared.flags import argument
from flashllm.engine.local import Model, open_model
from flashllm.errors import BenchmarkInvalid
from flashllm.settings.values import parse_positive, parse_size
from flashllm.units import format_bytes_moved

NAME = "second_turn"
NEW_TOKENS = 20
ANSWER_TOKENS = 8
PROMPT_TOKENS, ROUNDS = 64, 3


@dataclass(frozen=True, slots=True)
class SecondTurn:
    """A second turn up to its first token, and the first turn before it."""

    first_turn_bytes_read: int
    """By the prompt of the first turn, which begins with empty slots."""
    reused_tokens: int
    """Of the second turn's tokens, those that the context held."""
    read_tokens: int
    """The others: the new ones, and the end of the answer."""
    first_token_seconds: float
    bytes_read: int
    bytes_useful: int
    """Of those read, bundles themselves: without rounding and gaps that a read spans."""
    bytes_missing: int
    """Of the feed-forward weights, those that were not in slots before the second turn."""
    stolen_share: float | None

    @property
    def read_too_much(self) -> bool:
        """Whether something was read that was in memory, or was read twice."""
        return self.bytes_read > self.bytes_missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments ask; the exit code is 1 where a turn read what was in memory."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, positive = parser.add_argument, argument(parse_positive)
    add("model", type=Path, metavar="MODEL", help="a converted model")
    add("--memory", type=argument(parse_size), metavar="SIZE", help="the ceiling (that of `run`)")
    add("--prompt", type=positive, default=PROMPT_TOKENS, metavar="N",
        help=f"tokens of the first prompt ({PROMPT_TOKENS})")  # fmt: skip
    add("--rounds", type=positive, default=ROUNDS, metavar="R", help=f"({ROUNDS})")
    options = parser.parse_args(arguments)
    turns = measure(options)
    print(table(turns))
    settings = {key: str(value) for key, value in vars(options).items()}
    values = {
        "header": run_header(options.model, settings),
        "complete": True,
        "second_turns": [asdict(turn) for turn in turns],
    }
    print(json.dumps(values))
    if any(turn.read_too_much for turn in turns):
        remark(NAME, "a second turn read more than what was not in slots")
        return 1
    return 0


def measure(options: argparse.Namespace) -> list[SecondTurn]:
    """All rounds, in one process."""
    context = options.prompt + 2 * ANSWER_TOKENS + NEW_TOKENS
    found = []
    with open_model(options.model, memory=options.memory, context=context) as model:
        ids = random_ids(model.info.spec.vocab_size)
        for number in range(options.rounds):
            found.append(second_turn(model, ids, options.prompt))
            remark(NAME, f"round {number + 1}: {found[-1]}")
    return found


def second_turn(model: Model, ids: Iterator[int], prompt_tokens: int) -> SecondTurn:
    """Two turns from an empty context and empty slots, of which the second is measured.

    `BenchmarkInvalid` where a model ends its answer at once, so that nothing can be measured.
    """
    model.forget()
    first = model.generate(list(itertools.islice(ids, prompt_tokens)), ANSWER_TOKENS).complete()
    said = [*first.prompt, *first.ids]
    missing = bytes_missing(model)
    useful = model.reader_stats()["bytes_useful"]
    second = model.generate([*said, *itertools.islice(ids, NEW_TOKENS)], max_tokens=1)
    processors, begin = ProcessorTime.now(), time.perf_counter()
    token = next(second, None)
    seconds = time.perf_counter() - begin
    second.close()
    if token is None and second.finish_reason != "stop":
        raise BenchmarkInvalid(f"the second turn gave no token ({second.finish_reason})")
    return SecondTurn(
        first_turn_bytes_read=first.prefill.bytes_read,
        reused_tokens=second.reused_tokens,
        read_tokens=second.prompt_tokens - second.reused_tokens,
        first_token_seconds=seconds,
        bytes_read=second.prefill.bytes_read,
        bytes_useful=model.reader_stats()["bytes_useful"] - useful,
        bytes_missing=missing,
        stolen_share=ProcessorTime.now().stolen_share_since(processors),
    )


def table(turns: Sequence[SecondTurn]) -> str:
    """Markdown: a row for each round, and the median of the seconds."""
    rows = [["round", "first turn read", "tokens read, of all", "first token, s", "read",
             "useful", "not in slots", "no more than that", "stolen"]]  # fmt: skip
    for number, turn in enumerate(turns, 1):
        rows.append([
            str(number),
            format_bytes_moved(turn.first_turn_bytes_read),
            f"{turn.read_tokens} of {turn.read_tokens + turn.reused_tokens}",
            f"{turn.first_token_seconds:.3f}",
            format_bytes_moved(turn.bytes_read),
            format_bytes_moved(turn.bytes_useful),
            format_bytes_moved(turn.bytes_missing),
            "NO" if turn.read_too_much else "yes",
            format_steal_share(turn.stolen_share),
        ])  # fmt: skip
    median = statistics.median(turn.first_token_seconds for turn in turns)
    rows.append(["median", "", "", f"{median:.3f}", "", "", "", "", ""])
    return markdown(rows)


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
