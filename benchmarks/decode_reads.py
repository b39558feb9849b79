"""Decode's own reads against fio: `python -m benchmarks.decode_reads MODEL`.

As decoding does it: layer after layer, one call with as many bundles as a token loads of a layer,
scattered over it, by the reader, the threads and the size of a read that the plan gives, into slots
all over a pool. Once with each call waited for before the next (as a token does where nothing
overlaps), and once with the next call made before the last has ended. Beside them fio, with reads
of the same size by as many threads on the same file: fio, ours, fio, ours, ..., fio; each of ours
over the mean of fio around it, then the median. The exit code is 1 where the calls back to back
stay below 90 % of fio.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.own_command import ask, ended, remark
from flashllm.bench import page_cache
from flashllm.bench.disk import probe
from flashllm.bench.disk.fio import find_fio, run_fio
from flashllm.bench.disk.target import find_target
from flashllm.bench.header import run_header
from flashllm.bench.sample_statistics import Spread
from flashllm.cli.bench.options import parse_seconds
from flashllm.cli.shared.flags import argument
from flashllm.errors import BenchmarkInvalid, UsageError
from flashllm.flash.file_names import BUNDLES_FILE
from flashllm.flash.store import Store
from flashllm.planning.model_facts import choose_selector, recorded_activity
from flashllm.settings.values import parse_positive
from flashllm.text_table import columns

NAME = "decode_reads"
GOAL = 0.9
POOL_BYTES = 256 << 20
WAITED, BACK_TO_BACK = "each waited for", "back to back"
AHEAD = {WAITED: 0, BACK_TO_BACK: 1}
"""Calls under way when the next is made."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a token reads: bundles of each layer, and the number of threads."""

    loads: tuple[int, ...]
    threads: int
    window: int


def pattern_of(model: Path, options: argparse.Namespace) -> Pattern:
    """From the plan and the recorded activity; `UsageError` where nothing was recorded."""
    plan = ask("plan", str(model), "--json", *options.passed_on)["plan"]
    threads = options.threads or int(plan["io_threads"])
    with Store(model) as store:
        layers = store.spec.n_layers
        activity = recorded_activity(store, choose_selector(store, None))
    if options.batch:
        return Pattern((options.batch,) * layers, threads, int(plan["window"]))
    if activity is None:
        raise UsageError(
            f"{model}: nothing was recorded of its neurons, so that nobody knows how many a token"
            " loads; give --batch"
        )
    window = int(plan["window"])
    loads = (max(round(activity.increment(layer, window)), 1) for layer in range(layers))
    return Pattern(tuple(loads), threads, window)


class DecodeReads:
    """The reads of decoding, without what is computed between them."""

    def __init__(self, store: Store, pattern: Pattern, pool_bytes: int = POOL_BYTES) -> None:
        self._store, self._pattern = store, pattern
        self.stride = store.header.stride
        # Neighbours would be read at once, and be larger reads than fio's.
        self.reader = store.open_reader(True, pattern.threads)
        if not self.reader.direct:
            raise BenchmarkInvalid(
                f"{store.directory}: cannot be read directly ({self.reader.fallback}); what was"
                " measured would be the page cache. Give a model on a disk"
            )
        self._slots = max(pool_bytes // self.stride, max(pattern.loads) * (1 + max(AHEAD.values())))
        self._pool = probe.make_buffer(self.stride, self._slots * self.stride)
        self._random = np.random.default_rng()
        self._order = self._random.permutation(self._slots)
        self._taken = 0
        self.proven = True
        """Whether the system could be asked, after each run, what devices had given."""

    def run(self, seconds: float, ahead: int) -> float:
        """Bytes a second, with `ahead` calls under way when the next is made.

        `BenchmarkInvalid` where they did not come from the device.
        """
        assert (ahead + 1) * max(self._pattern.loads) <= self._slots, "no slot is read into twice"
        before, asked = page_cache.device_bytes(), self._bytes_read()
        tickets: list[tuple[int, int]] = []
        layers = cycle(enumerate(self._pattern.loads))
        done, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            layer, count = next(layers)
            tickets.append((self._submit(layer, count), count))
            while len(tickets) > ahead:
                done += self._wait(tickets.pop(0))
        for ticket in tickets:
            done += self._wait(ticket)
        elapsed = time.perf_counter() - begin
        path = self._store.directory / BUNDLES_FILE
        asked = self._bytes_read() - asked
        # Of this process and of those that it has waited for, fio among them: so run by run.
        given = page_cache.device_bytes()
        self.proven &= probe.check_device_bytes(path, before, given, asked)
        return done * self.stride / elapsed

    def _bytes_read(self) -> int:
        return int(self.reader.stats()["bytes_read"])  # type: ignore[arg-type]

    def _submit(self, layer: int, count: int) -> int:
        offsets, destinations = self._places(layer, count)
        return int(self.reader.submit(offsets, self.stride, self._pool, destinations))

    def _places(self, layer: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bundles of a layer in the order of their ids, and slots anywhere in the pool.

        All slots are taken before one is taken again: calls under way never share any.
        """
        header = self._store.header
        ids = np.sort(self._random.choice(header.bundles_per_layer, count, replace=False))
        slots = self._order[(self._taken + np.arange(count)) % self._slots]
        self._taken += count
        return header.offset(layer, 0) + ids.astype(np.int64) * self.stride, slots * self.stride

    def _wait(self, ticket: tuple[int, int]) -> int:
        self.reader.wait(ticket[0])
        return ticket[1]


def interleaved(
    rounds: int, fio: Callable[[], float], ours: Mapping[str, Callable[[], float]]
) -> tuple[list[float], dict[str, list[float]]]:
    """fio, ours, fio, ...: rates of both, one of fio's more."""
    theirs = [fio()]
    found: dict[str, list[float]] = {name: [] for name in ours}
    for number in range(rounds):
        # Each way comes first every other time, and so next to either fio.
        names = list(ours) if number % 2 == 0 else list(ours)[::-1]
        for name in names:
            found[name].append(ours[name]())
        theirs.append(fio())
        remark(NAME, f"round {number + 1} of {rounds}: {theirs[-1] / 1e9:.2f} GB/s by fio")
    return theirs, found


def ratios(ours: Sequence[float], fio: Sequence[float]) -> list[float]:
    """Each of ours over the mean of fio before and after."""
    around = (statistics.fmean(pair) for pair in pairwise(fio))
    return [rate / mean for rate, mean in zip(ours, around, strict=True)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds, proven to have come from the device."""
    fio = find_fio()
    if fio is None:
        raise UsageError("fio is not installed; install it with your system's package manager")
    target = find_target(options.model)
    pattern = pattern_of(options.model, options)
    probe.forget(target.path)
    with Store(options.model, verify="off") as store:
        reads = DecodeReads(store, pattern)

        def theirs() -> float:
            found = run_fio(fio, target.path, reads.stride, pattern.threads, options.seconds)
            if isinstance(found, str):
                raise BenchmarkInvalid(found)
            return found.bytes_per_second

        ours = {
            name: functools.partial(reads.run, options.seconds, ahead)
            for name, ahead in AHEAD.items()
        }
        rates, found = interleaved(options.rounds, theirs, ours)
    return {
        "read_bytes": reads.stride,
        "threads": pattern.threads,
        "bundles_a_layer": statistics.fmean(pattern.loads),
        "window": pattern.window,
        "proven": reads.proven,
        "fio": Spread.of(rates).to_json(),
        "ours": {name: Spread.of(values).to_json() for name, values in found.items()},
        "ratios": {
            name: Spread.of(ratios(values, rates)).to_json() for name, values in found.items()
        },
    }


def table(found: dict[str, Any]) -> str:
    """For people."""
    rows = [("", "GB/s (min to max)", "over fio (min to max)"), ("fio", _rate(found["fio"]), "")]
    for name, rates in found["ours"].items():
        share = found["ratios"][name]
        shown = f"{share['median']:.1%} ({share['min']:.1%} to {share['max']:.1%})"
        rows.append((f"ours, {name}", _rate(rates), shown))
    return columns(rows) + (
        f"reads of {found['read_bytes']:,} bytes by {found['threads']} threads,"
        f" {found['bundles_a_layer']:.0f} bundles of a layer a call, window {found['window']};"
        f" {'proven uncached' if found['proven'] else 'not proven: no /proc/self/io here'}\n"
    )


def _rate(spread: dict[str, Any]) -> str:
    return f"{spread['median'] / 1e9:.3f} ({spread['min'] / 1e9:.3f} to {spread['max'] / 1e9:.3f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        epilog="Options that it does not know, such as --memory or --ctx-size, go to the planner.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a converted model")
    add("--threads", type=argument(parse_positive), metavar="N", help="(the plan's)")
    add("--batch", type=argument(parse_positive), metavar="N", help="bundles a call (the plan's)")
    add("--seconds", type=argument(parse_seconds), default=1.0, metavar="T", help="each (1)")
    add("--rounds", type=argument(parse_positive), default=5, metavar="N", help="(5)")
    add("--json", action="store_true", help="one JSON object with every number")
    options, passed_on = parser.parse_known_args(arguments)
    options.passed_on = passed_on
    found = measure(options)
    if options.json:
        plain = {name: str(value) for name, value in vars(options).items()}
        header = run_header(options.model, plain)
        print(json.dumps({"header": header, "complete": True, **found}))
    else:
        print(table(found), end="")
    reached = found["ratios"][BACK_TO_BACK]["median"]
    if reached < GOAL:
        remark(NAME, f"{reached:.1%} of fio, below {GOAL:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
