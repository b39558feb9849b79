"""Holds commands against their smallest ceilings: `python -m benchmarks.memory_ceiling MODEL...`.

    python benchmarks/synthetic.py opt-6.7b SRC --layers 2; flashllm convert SRC M --dtype int4 ...
    python -m benchmarks.memory_ceiling M [--prompts 512,1900] [--commands run,chat]

The context is as long as the prompt and what follows, so that all that is planned for it is used.
Every command runs in a process of its own under the smallest ceiling that it accepts, and the peak
of its resident memory, as the kernel counts it, is compared with that ceiling: of `chat` the sum of
the engine's process and of the one that asks it; `again` opens the model three times in one process
and closes it each time. What passes a ceiling shows where a layer is wide: two layers of a large
model are enough. Exit code 1 where a ceiling was passed; the last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.own_command import CommandError, ended, remark
from benchmarks.results import markdown
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.flash.manifest import read_manifest
from flashllm.system.memory import rss_bytes, rss_peak_bytes
from flashllm.units import MIB

TOO_SMALL_BYTES = 10 * MIB
STEP_BYTES = 2 * MIB
"""No two processes are of exactly one size: so much is added until the ceiling is accepted."""
STEPS_MAX = 8
SMALLEST = re.compile(r"the smallest that works here is (\d+) MiB")
OPENINGS = 3
EVALUATED_TOKENS = 512
"""At least so many are evaluated: the prompt again and again."""


@dataclass(frozen=True, slots=True)
class Held:
    """One command under one ceiling."""

    model: str
    command: str
    prompt_tokens: int
    ceiling_bytes: int
    peak_bytes: int
    left_bytes: int | None = None
    """Of `again`: resident memory after the last closing, less that before the first opening."""

    @property
    def is_held(self) -> bool:
        """Whether the peak is within the ceiling."""
        return self.peak_bytes <= self.ceiling_bytes


@dataclass(frozen=True, slots=True)
class Task:
    """A model, a prompt, and how many tokens are to be written after it."""

    model: str
    ids: tuple[int, ...]
    tokens: int
    directory: Path
    """For files that a command reads or writes."""

    @property
    def context(self) -> str:
        """As many tokens as there will be, and no more."""
        return str(len(self.ids) + self.tokens + 1)

    def own(self, command: str, ceiling_bytes: int) -> list[str]:
        """Arguments of a command that this module runs in a process of its own."""
        ids = ",".join(map(str, self.ids))
        words = ["--worker", command, "--memory", str(ceiling_bytes), "--ids", ids]
        return ["-m", "benchmarks.memory_ceiling", self.model, *words, "-n", str(self.tokens)]

    def flashllm(self, ceiling_bytes: int, *arguments: str) -> list[str]:
        """Arguments of one of flashllm's commands."""
        return ["-m", "flashllm", *arguments, "--memory", f"{ceiling_bytes // MIB}MiB"]


def _run(task: Task, ceiling_bytes: int) -> list[str]:
    ids, count = " ".join(map(str, task.ids)), str(task.tokens)
    arguments = ("run", task.model, "--ids", ids, "-n", count, "-c", task.context)
    return task.flashllm(ceiling_bytes, *arguments)


def _bench(task: Task, ceiling_bytes: int) -> list[str]:
    ids, count = " ".join(map(str, task.ids)), str(task.tokens)
    arguments = ("bench", "tokens", task.model, "--ids", ids, "-n", count, "-c", task.context)
    return task.flashllm(ceiling_bytes, *arguments, "--runs", "1")


def _eval(task: Task, ceiling_bytes: int) -> list[str]:
    text = task.directory / "text.ids"
    line = " ".join(map(str, task.ids)) + "\n"
    text.write_text(line * -(-EVALUATED_TOKENS // len(task.ids)), encoding="ascii")
    return task.flashllm(ceiling_bytes, "eval", task.model, "--text", str(text))


COMMANDS: dict[str, Callable[[Task, int], list[str]]] = {
    "run": _run,
    "chat": lambda task, ceiling_bytes: task.own("chat", ceiling_bytes),
    "bench": _bench,
    "eval": _eval,
    "again": lambda task, ceiling_bytes: task.own("again", ceiling_bytes),
}


def main() -> int:
    """Measure what the arguments ask for; the exit code."""
    options = _options()
    if options.worker:
        return _work(options)
    rows = []
    for model in options.models:
        for tokens in map(int, options.prompts.split(",")):
            with tempfile.TemporaryDirectory() as directory:
                task = _task(model, tokens, options.tokens, Path(directory))
                for command in options.commands.split(","):
                    rows.append(hold(command, task))
                    remark("memory_ceiling", " ".join(_cells(rows[-1])))
    print(markdown([["model", "command", "prompt", "ceiling, MiB", "peak, MiB", "left", "held"],
                    *map(_cells, rows)]))  # fmt: skip
    print(json.dumps({"rows": [asdict(row) | {"is_held": row.is_held} for row in rows]}))
    return int(not all(row.is_held for row in rows))


def hold(command: str, task: Task) -> Held:
    """Runs one command under its smallest ceiling."""
    refused = _ended(COMMANDS[command](task, TOO_SMALL_BYTES))
    found = SMALLEST.search(refused.said)
    if found is None:
        raise CommandError(f"{command} names no smallest ceiling: {refused.said}", 1)
    ceiling_bytes = int(found[1]) * MIB
    for _ in range(STEPS_MAX):
        done = _ended(COMMANDS[command](task, ceiling_bytes))
        if done.code != MemoryCeilingTooSmall.exit_code:
            break
        ceiling_bytes += STEP_BYTES
    if done.code:
        raise CommandError(f"{command}: {done.said}", done.code)
    peak_bytes, left_bytes = done.peak_bytes, None
    if command in ("chat", "again"):
        told = json.loads(done.printed.splitlines()[-1])
        peak_bytes, left_bytes = told["peak_bytes"], told.get("left_bytes")
    return Held(
        Path(task.model).name, command, len(task.ids), ceiling_bytes, peak_bytes, left_bytes
    )


@dataclass(frozen=True, slots=True)
class _Ended:
    code: int
    printed: str
    said: str
    """The last line on standard error."""
    peak_bytes: int


def _ended(arguments: Sequence[str]) -> _Ended:
    """Python with these arguments, when it has ended, and the most resident memory it had."""
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, *arguments], stdout=printed, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (printed, said):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    last = (texts[1].strip().splitlines() or [""])[-1]
    unit = 1 if sys.platform == "darwin" else 1024
    return _Ended(process.returncode, texts[0], last, usage.ru_maxrss * unit)


def _work(options: argparse.Namespace) -> int:
    """`chat` and `again`, in a process of their own; prints what they took as JSON."""
    ids = [int(part) for part in options.ids.split(",")]
    work = {"chat": _chat, "again": _again}[options.worker]
    print(json.dumps(work(options.models[0], options.memory, ids, options.tokens)))
    return 0


def _chat(model: str, ceiling_bytes: int, ids: list[int], tokens: int) -> dict[str, int]:
    """The engine in a process of its own, asked as the chat asks it; the peaks of both."""
    from flashllm.cli.shared.open_model import WORKER_ENTRY
    from flashllm.engine.process.launcher import open_in
    from flashllm.engine.process.supervisor import WorkerSupervisor
    from flashllm.options import ModelOptions

    options = ModelOptions(memory=ceiling_bytes, context=len(ids) + tokens + 1)
    process = WorkerSupervisor(WORKER_ENTRY)
    with open_in(process, model, options) as engine:
        for _ in engine.generate(ids, max_tokens=tokens):
            pass
        status = Path(f"/proc/{process.pid}/status").read_text("ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None, "a process has a peak"
        engine_bytes = int(found[1]) * 1024
    return {"peak_bytes": engine_bytes + rss_peak_bytes()}


def _again(model: str, ceiling_bytes: int, ids: list[int], tokens: int) -> dict[str, int]:
    """The same model opened again and again in this process, each closed one still referred to."""
    from flashllm.engine import loading
    from flashllm.engine.local import open_model

    before_bytes = loading.interpreter_bytes()
    closed, context = [], len(ids) + tokens + 1
    for _ in range(OPENINGS):
        with open_model(model, memory=ceiling_bytes, context=context) as opened:
            opened.generate(ids, max_tokens=tokens).complete()
        closed.append(opened)
    return {"peak_bytes": rss_peak_bytes(), "left_bytes": rss_bytes() - before_bytes}


def _task(model: str, prompt_tokens: int, tokens: int, directory: Path) -> Task:
    """With a prompt of random ids, always the same."""
    vocabulary = read_manifest(Path(model)).spec.vocab_size
    random_ids = random.Random(prompt_tokens)
    ids = tuple(random_ids.randrange(8, vocabulary) for _ in range(prompt_tokens))
    return Task(model, ids, tokens, directory)


def _cells(row: Held) -> list[str]:
    left = "" if row.left_bytes is None else f"{row.left_bytes / MIB:+.1f}"
    margin = (row.ceiling_bytes - row.peak_bytes) / MIB
    return [
        row.model,
        row.command,
        str(row.prompt_tokens),
        f"{row.ceiling_bytes / MIB:,.0f}",
        f"{row.peak_bytes / MIB:,.1f}",
        left,
        f"{margin:.1f} below" if row.is_held else f"{-margin:.1f} ABOVE",
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_ceiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="converted models")
    parser.add_argument("--prompts", default="512,1900", help="tokens of prompts (%(default)s)")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="(%(default)s)")
    parser.add_argument("-n", "--tokens", type=int, default=8, help="to write (%(default)s)")
    parser.add_argument("--worker", choices=("chat", "again"), help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ids", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(ended("memory_ceiling", main))
