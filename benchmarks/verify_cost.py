"""What checking weights costs: `python -m benchmarks.verify_cost MODEL`.

The same model is opened, reads a prompt and decodes, with `verify` off, first and always, one after
the other in each round, so that what else the machine does falls on all alike. Printed are medians,
and the median over the rounds of each ratio to `off` in the same round. `off` comes twice in a
round, first and last: how far the second is from the first is the noise.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.own_command import ended, remark
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.open_model import model_directory
from flashllm.options import ModelOverrides, Verify
from flashllm.settings.values import parse_memory, parse_positive
from flashllm.text_table import columns

NAME = "verify_cost"
ORDER: tuple[tuple[str, Verify], ...] = (
    ("off", "off"), ("first", "first"), ("always", "always"), ("off again", "off")
)  # fmt: skip
PARTS = ("opening_ns", "opening_cpu_ns", "prompt_ns", "decode_ns", "run_ns", "run_cpu_ns")
QUESTION = "What is the ocean?"


@dataclass(frozen=True, slots=True)
class Turn:
    """One opening and one answer; `run_ns` is prompt and decoding together.

    The processor time of all threads (`cpu`) is what stays comparable on a machine that is busy.
    """

    opening_ns: int
    opening_cpu_ns: int
    prompt_ns: int
    decode_ns: int
    run_ns: int
    run_cpu_ns: int
    bundles_verified: int
    bytes_read: int


def turn(model: Path, verify: Verify, options: argparse.Namespace) -> Turn:
    """Opens the model, and generates."""
    from flashllm.engine.local import open_model

    gc.collect()  # the model of the turn before counts against the ceiling until it is gone
    overrides: ModelOverrides = {"verify": verify, "memory": options.memory}
    start, cpu = time.perf_counter_ns(), time.process_time_ns()
    with open_model(model, **overrides) as opened:
        ready, ready_cpu = time.perf_counter_ns(), time.process_time_ns()
        if opened.has_tokenizer:
            ids = opened.tokenizer.encode_chat([{"role": "user", "content": QUESTION}])
        else:
            vocabulary = opened.info.spec.vocab_size
            ids = [5 + 7919 * i % (vocabulary - 5) for i in range(options.prompt)]
        generation = opened.generate(ids, max_tokens=options.tokens).complete()
        run_cpu_ns = time.process_time_ns() - ready_cpu
        decode_ns = sum(cost.wall_ns for cost in generation.costs)
        report = opened.io_report()
        return Turn(
            opening_ns=ready - start,
            opening_cpu_ns=ready_cpu - cpu,
            prompt_ns=generation.prefill.wall_ns,
            decode_ns=decode_ns,
            run_ns=generation.prefill.wall_ns + decode_ns,
            run_cpu_ns=run_cpu_ns,
            bundles_verified=report["bundles_verified"],
            bytes_read=sum(cost.bytes_read for cost in generation.costs),
        )


def measure(model: Path, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Turns by their names; one of each in a round, after one that is not counted."""
    turn(model, "off", options)
    found: dict[str, list[Turn]] = {name: [] for name, _ in ORDER}
    for number in range(options.rounds):
        for name, verify in ORDER:
            found[name].append(turn(model, verify, options))
        remark(NAME, f"round {number + 1} of {options.rounds}")
    return found


def ratios(turns: dict[str, list[Turn]]) -> dict[str, dict[str, float]]:
    """For each name and part, the median over rounds of its time over that of `off`.

    `off` is the mean of the two of the round.
    """
    found: dict[str, dict[str, float]] = {}
    for name in turns:
        found[name] = {}
        for part in PARTS:
            plain = zip(turns["off"], turns["off again"], strict=True)
            means = [(getattr(a, part) + getattr(b, part)) / 2 for a, b in plain]
            times = [getattr(one, part) for one in turns[name]]
            shares = [took / mean for took, mean in zip(times, means, strict=True) if mean]
            found[name][part] = statistics.median(shares) if shares else 1.0
    return found


def table(turns: dict[str, list[Turn]]) -> str:
    """Medians in milliseconds and ratios."""
    compared = ratios(turns)
    rows: list[Sequence[str]] = [
        (
            "verify",
            *(part.removesuffix("_ns").replace("_", " ") for part in PARTS),
            "bundles verified",
        )
    ]
    for name, found in turns.items():
        cells = []
        for part in PARTS:
            milliseconds = statistics.median(getattr(one, part) for one in found) / 1e6
            cells.append(f"{milliseconds:,.1f} ms ({compared[name][part]:.3f})")
        rows.append((name, *cells, f"{found[-1].bundles_verified:,}"))
    return columns(rows)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    parser.add_argument("model", nargs="?", help="a converted model (the demo)")
    parser.add_argument("--memory", type=argument(parse_memory), metavar="SIZE")
    parser.add_argument(
        "--prompt",
        type=argument(parse_positive),
        default=16,
        metavar="IDS",
        help="ids of the prompt, where the model has no tokenizer for a question",
    )
    parser.add_argument("--tokens", type=argument(parse_positive), default=64, metavar="N")
    parser.add_argument("--rounds", type=argument(parse_positive), default=5, metavar="N")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    model = model_directory(options.model)
    turns = measure(model, options)
    if options.json:
        settings: dict[str, Any] = {
            name: getattr(options, name) for name in ("memory", "prompt", "tokens", "rounds")
        }
        report = {name: [asdict(one) for one in found] for name, found in turns.items()}
        print(json.dumps({"header": run_header(model, settings), "turns": report}))
    else:
        print(table(turns), end="")
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
