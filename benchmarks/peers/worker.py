"""The process of every peer: reads a prompt, decodes greedily, prints one JSON line.

A worker imports its library, loads the model and hands over a step; the clock is the same for all.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flashllm.cli.shared.flags import argument
from flashllm.options import Select
from flashllm.settings.values import parse_ids, parse_number, parse_positive
from flashllm.system.memory import rss_peak_bytes

TOKENS_LEAST = 4
"""Decoded however long it takes; a median needs a few."""

OUR_OPENMP_SETTING = "GOMP_SPINCOUNT"
"""What importing flashllm sets for its own products; a peer's libraries keep their defaults."""

Step = Callable[[Sequence[int]], int]
"""Takes token ids into the context, and gives the likeliest next one."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is asked to do."""

    model: Path
    ids: list[int]
    tokens: int
    seconds: float
    """After so long, no more tokens than `TOKENS_LEAST`."""
    limit_bytes: int | None
    threads: int
    as_stored: bool = False
    """Weights stay as the file has them, though another order would suit the processor better."""
    warm: bool = False
    """Another prompt as long goes through first, and is forgotten."""
    select: Select | None = None
    """Our own selector, where it is not the usual one."""

    @property
    def context(self) -> int:
        """Tokens that the prompt and the answer take."""
        return len(self.ids) + self.tokens + 1

    @property
    def first_ids(self) -> list[int]:
        """The prompt before, as long and another from its first token on."""
        return [*self.ids[1:], *self.ids[:1]]


def parse_task(description: str | None) -> Task:
    """From the command line; `arguments_of` makes it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ids", type=argument(parse_ids), required=True)
    parser.add_argument("--tokens", type=argument(parse_positive), required=True)
    parser.add_argument("--seconds", type=argument(parse_number), required=True)
    parser.add_argument("--limit-bytes", type=argument(parse_positive))
    parser.add_argument("--threads", type=argument(parse_positive), required=True)
    parser.add_argument("--as-stored", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--select")
    return Task(**vars(parser.parse_args()))


def arguments_of(task: Task) -> list[str]:
    """The command line of a task."""
    line = [str(task.model), "--ids", ",".join(map(str, task.ids)), "--tokens", str(task.tokens)]
    line += ["--seconds", str(task.seconds), "--threads", str(task.threads)]
    if task.limit_bytes is not None:
        line += ["--limit-bytes", str(task.limit_bytes)]
    line += ["--as-stored"] * task.as_stored + ["--warm"] * task.warm
    if task.select is not None:
        line += ["--select", task.select]
    return line


def physical_cores() -> int:
    """Cores that this process may use, without their second threads."""
    allowed = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 0
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return min(cores, allowed) if allowed else cores


def run(
    task: Task, step: Step, forget: Callable[[], object], how: str, facts: dict[str, Any]
) -> None:
    """Time the prompt and each token after it, and print what was found.

    `forget` empties the context; `how` is for the table: what this peer did with its memory, in a
    few words.
    """
    first_ns = None
    if task.warm:
        start_ns = time.perf_counter_ns()
        step(task.first_ids)
        first_ns = time.perf_counter_ns() - start_ns
        forget()
    start_ns = time.perf_counter_ns()
    token = step(task.ids)
    now_ns = time.perf_counter_ns()
    prefill_ns = now_ns - start_ns
    tokens = [token]
    samples_ns: list[int] = []
    deadline_ns = now_ns + int(task.seconds * 1e9)
    while len(samples_ns) < task.tokens:
        if len(samples_ns) >= TOKENS_LEAST and now_ns > deadline_ns:
            break
        before_ns = now_ns
        token = step([token])
        now_ns = time.perf_counter_ns()
        tokens.append(token)
        samples_ns.append(now_ns - before_ns)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "how": how,
        "prefill_ns": prefill_ns,
        "first_prefill_ns": first_ns,
        "samples_ns": samples_ns,
        "rss_peak_bytes": rss_peak_bytes(),
        "major_faults": usage.ru_majflt,
        "tokens": tokens,
        "facts": {"threads": task.threads, **facts},
    }
    print(json.dumps(found), flush=True)
