"""Measures what it gains to ask routers a layer early and to read ahead what they say.

    python -m benchmarks.expert_guesses MODEL --memory SIZE [--accuracy A] [-n N] [--rounds R]

The same greedy answer is computed without and with reading ahead, by turns in one process, after
one of each that does not count; its tokens have to be the same. *Main* and *all CPUs* are processor
time, of the thread that computes layer by layer and of all of them: other programs change it less.
Routers of synthetic models see nothing but the token, so that what they say early is always right:
`--accuracy` makes so large a share of each guess right, and the rest experts that one of the
layer's last tokens went through.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.own_command import ended
from flashllm import Sampling, open_model
from flashllm.arrays import Ids
from flashllm.cli.shared.flags import argument
from flashllm.engine.local import Model
from flashllm.errors import UsageError
from flashllm.model.active_set_selectors import ActiveSet, Vector
from flashllm.model.router import SelectRouted
from flashllm.settings.values import parse_count, parse_ids, parse_memory
from flashllm.telemetry.costs import decode_summary
from flashllm.text_table import columns

NAME = "expert_guesses"
RECENT_TOKENS = 16


class LessAccurate(SelectRouted):
    """A router whose early guesses are right with a given probability, each for itself."""

    def __init__(self, router: SelectRouted, accuracy: float, seed: int = 0) -> None:
        self.__dict__.update(router.__dict__)
        self._accuracy, self._random = accuracy, np.random.default_rng(seed)
        self._recent: dict[int, deque[Ids]] = {}

    def select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:
        """As the router, which is not changed; what it chose is remembered."""
        active = super().select(layer, x, gate)
        self._recent.setdefault(layer, deque(maxlen=RECENT_TOKENS)).append(active.ids)
        return active

    def ranked(self, layer: int, x: Vector) -> Ids:
        """As the router, but for some that are other experts."""
        guess = super().ranked(layer, x)
        recent = self._recent.get(layer)
        if recent is None:
            return guess
        others = np.setdiff1d(np.concatenate(recent), guess)
        wrong = np.flatnonzero(self._random.random(len(guess)) >= self._accuracy)[: len(others)]
        guess[wrong] = self._random.choice(others, len(wrong), replace=False)
        return guess


def compare(model: Model, ids: Sequence[int], tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Summaries of answers without and with reading ahead, by turns; tokens are the same."""
    decode, found, answers = model.decoder._decode, [], set()  # noqa: SLF001
    ahead = decode.prefetchers
    if not ahead:
        raise UsageError("this model, at this ceiling, reads nothing ahead")
    for number in range(2 + 2 * rounds):
        decode.prefetchers = ahead if number % 2 else []
        generation = iter(model.generate(ids, tokens, Sampling(temperature=0.0)))
        made = [next(generation)]
        main, whole = time.thread_time_ns(), time.process_time_ns()
        made += generation
        main, whole = time.thread_time_ns() - main, time.process_time_ns() - whole
        answers.add(tuple(token.id for token in made))
        costs = [token.cost for token in made[1:]]
        if number >= 2:
            seconds = statistics.median(cost.wall_ns for cost in costs) / 1e9
            own = {"ahead": bool(number % 2), "median_s": seconds, "main_ns": main, "cpu_ns": whole}
            found.append(own | decode_summary(costs))
    if len(answers) != 1:
        raise AssertionError("reading ahead changed an answer")
    return found


def rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each answer."""
    lines = [["ahead", "ms/token", "median", "waiting", "main", "all CPUs", "MiB/token", "hits",
              "guessed", "used", "MiB in vain"]]  # fmt: skip
    for one in found:
        n = one["tokens"]
        used = one["guesses_used"] / one["guessed"] if one["guessed"] else 0.0
        lines.append([
            "yes" if one["ahead"] else "no", f"{one['wall_ns'] / n / 1e6:.2f}",
            f"{one['median_s'] * 1e3:.2f}", f"{one['parts_ns']['io_exposed'] / n / 1e6:.2f}",
            f"{one['main_ns'] / n / 1e6:.2f}", f"{one['cpu_ns'] / n / 1e6:.2f}",
            f"{one['bytes_read'] / n / (1 << 20):.2f}", f"{one['hit_rate']:.1%}",
            f"{one['guessed'] / n:.2f}", f"{used:.1%}",
            f"{one['guess_bytes_wasted'] / n / (1 << 20):.2f}",
        ])  # fmt: skip
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a converted mixture of experts, or demo-moe")
    add("--memory", type=argument(parse_memory), metavar="SIZE", required=True, help="the ceiling")
    add("--accuracy", type=float, metavar="A", help="share of each guess that is right (as it is)")
    add("--ids", type=argument(parse_ids), default=[5, 6, 7, 8], metavar="N,N", help="prompt")
    add("-n", type=argument(parse_count), default=64, metavar="N", help="tokens an answer (64)")
    add("--rounds", type=argument(parse_count), default=3, metavar="R", help="pairs (3)")
    options = parser.parse_args(arguments)
    with open_model(options.model, memory=options.memory, overlap="layer") as model:
        decoder = model.decoder
        if not isinstance(decoder.selector, SelectRouted):
            raise UsageError(f"{options.model} has no routers")
        if options.accuracy is not None:
            decoder.use(LessAccurate(decoder.selector, options.accuracy))
        found = compare(model, options.ids, options.n, options.rounds)
    print(columns(rows(found)), end="")
    pairs = zip(found[::2], found[1::2], strict=True)
    ratios = [ahead["wall_ns"] / without["wall_ns"] for without, ahead in pairs]
    print(f"time with reading ahead / without, by pairs: {', '.join(f'{r:.3f}' for r in ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
