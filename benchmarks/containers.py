"""Containers that set no ceiling for us: `python -m benchmarks.containers MODEL [--sizes 1GiB]`.

`run` and the chat open the model in a control group of each size, without `--memory`. What they
take for themselves follows from the limit that they find: the model runs, or is refused with the
least that it needs (also by a chat that stays), and the kernel kills nothing. `run` reads a prompt
of random ids; the chat is asked a question, and needs a model with a tokenizer.

The exit code is 1 where something was killed or ended in another way; the last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.chat.terminal import ChatTerminal
from benchmarks.chat.turns import ChatTurns
from benchmarks.memory_limit import MemoryGroup, limited
from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.errors import MemoryCeilingTooSmall, ReadFailed
from flashllm.flash.manifest import read_manifest
from flashllm.settings.values import parse_positive, parse_size
from flashllm.system import paths
from flashllm.units import GIB, MIB

NAME = "containers"
SIZES = (GIB, 3 * GIB, 6 * GIB)
QUESTION = "What is an ocean?"
READY, FAILED = "ready", "failed"
OPEN_SECONDS = 300.0
ANSWERED, REFUSED = "answered", "refused"


@dataclass(frozen=True, slots=True)
class Contained:
    """What one command did in a container of one size."""

    command: str
    limit_bytes: int
    outcome: str
    """`answered`, `refused`, or how it ended otherwise."""
    said: str
    """Why it was refused, or its last words."""
    peak_bytes: int | None
    """Of the whole group, page cache included; None where the kernel keeps none."""
    kills: int

    @property
    def holds(self) -> bool:
        """Whether it ran or was refused, and nothing was killed."""
        return self.outcome in (ANSWERED, REFUSED) and not self.kills


def contain(command: str, model: Path, limit_bytes: int, prompt: int, tokens: int) -> Contained:
    """One command in a container. Errors: `MemoryLimitError` where none can be made."""
    with limited(limit_bytes) as group:
        group.check_joinable()
        work = {"run": _run, "chat": _chat}[command]
        outcome, said = work(group, model, prompt, tokens)
        usage = group.usage()
    return Contained(command, usage.limit_bytes, outcome, said, usage.peak_bytes, usage.kills)


def _run(group: MemoryGroup, model: Path, prompt: int, tokens: int) -> tuple[str, str]:
    vocabulary = read_manifest(model).spec.vocab_size
    random_ids = random.Random(prompt)
    ids = " ".join(str(random_ids.randrange(8, vocabulary)) for _ in range(prompt))
    words = ["-m", "flashllm", "run", str(model), "--ids", ids, "-n", str(tokens)]
    done = subprocess.run(
        group.command([sys.executable, *words]), capture_output=True, text=True, check=False
    )
    said = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode == MemoryCeilingTooSmall.exit_code:
        return REFUSED, said
    return (f"code {done.returncode}", said) if done.returncode else (ANSWERED, "")


def _chat(group: MemoryGroup, model: Path, _: int, tokens: int) -> tuple[str, str]:
    words = ["-m", "flashllm", "chat", str(model), "--no-quick-profile", "-n", str(tokens)]
    with ChatTerminal(group.command([sys.executable, *words]), os.environ) as terminal:
        chat = ChatTurns(terminal, paths.database_file())
        try:
            if terminal.wait_for_any((READY, FAILED), OPEN_SECONDS) == FAILED:
                terminal.read(1.0)  # the reason comes behind it
                return REFUSED, _reason(terminal.last_words)
            chat.ask(QUESTION)
        except ReadFailed as error:
            return "no answer", str(error)
        return ANSWERED, ""


def _reason(shown: str) -> str:
    """The sentence of a screen that says why a model cannot be opened, or all of it."""
    found = re.search(r"cannot be opened: (.*?) `/set", shown.replace("\u2588 ", ""))
    return found[1] if found else shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code, 1 where a container was no limit."""
    options = parse(arguments)
    found = []
    with contextlib.ExitStack() as held:
        home = held.enter_context(tempfile.TemporaryDirectory(prefix="flashllm-containers-"))
        os.environ["FLASHLLM_HOME"] = home
        for limit_bytes in options.sizes:
            for command in options.commands.split(","):
                began = time.monotonic()
                one = contain(command, options.model, limit_bytes, options.prompt, options.tokens)
                found.append(one)
                remark(NAME, f"{' '.join(_cells(one))} ({time.monotonic() - began:.0f} s)")
    titles = ["limit, MiB", "command", "outcome", "peak of the group, MiB", "killed", "said"]
    print(markdown([titles, *map(_cells, found)]))
    settings = {key: str(value) for key, value in vars(options).items()}
    header = run_header(options.model, settings)
    rows = [asdict(one) | {"holds": one.holds} for one in found]
    print(json.dumps({"header": header, "rows": rows}))
    return int(not all(one.holds for one in found))


def _cells(one: Contained) -> list[str]:
    peak = "" if one.peak_bytes is None else f"{one.peak_bytes / MIB:,.0f}"
    limit = f"{one.limit_bytes / MIB:,.0f}"
    return [limit, one.command, one.outcome, peak, str(one.kills), one.said[:200]]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_size(part) for part in text.split(","))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, positive = parser.add_argument, argument(parse_positive)
    add("model", type=Path, metavar="MODEL", help="a converted model")
    add("--sizes", type=argument(_sizes), default=SIZES, help="of containers (1GiB,3GiB,6GiB)")
    add("--commands", default="run,chat", help="(%(default)s)")
    add("--prompt", type=positive, default=512, metavar="N", help="tokens, for run (512)")
    add("-n", "--tokens", type=positive, default=8, help="to write, at most (8)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
