"""Use of the chat for as long as one likes: `python -m benchmarks.soak [--minutes 60]`.

A real chat with its real engine, on a pseudo-terminal, in a home that has been used for months. It
begins with what takes most: the largest screen full of turns, with panels and each page, and a full
context; in its beginning the screen stays the largest. By a seed it is asked, stopped, continued,
given other conversations, pages and sizes; it is stopped by signals, its engine is paused, and in
the first third of the time killed, so that the last one has a life to grow in, which begins with a
full context too. Memory, descriptors and threads of all processes are looked at four times a
second, and are lines of JSON in the log, as is every action. The exit code is 1 where a limit does
not hold:

- memory of all processes together stays below the ceiling (--memory);
- after the beginning of a process (a sixth of the time, ten minutes at most) the median of its
  memory over as long a time grows by 1 MiB at most until the end, and its descriptors and threads
  not at all; a soak of less than ten minutes is all beginning, and its growth of memory is only
  told, as is what nine tenths of the looks were below;
- every answer comes to its end, the chat is left by Ctrl+Q, and the terminal is as it was.

The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.chat.terminal import ChatTerminal
from benchmarks.own_command import ask, ended, remark
from benchmarks.results import markdown
from benchmarks.soak.actions import CTRL_Q, MOST, User
from benchmarks.soak.home import furnish
from benchmarks.soak.processes import Watch
from benchmarks.soak.verdict import LOSING_SHARE, Finding, beginning_seconds, judge
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.errors import FlashllmError, ReadFailed
from flashllm.settings.values import parse_number, parse_size

NAME = "soak"
MINUTES = 60.0
MEMORY_BYTES = 280 << 20
TOKENS = 48
LEAVE_SECONDS = 30.0
TELL_SECONDS = 60.0
TITLES = ["what", "after the beginning", "at the end", "found", "limit", "holds"]


def use(options: argparse.Namespace, log: IO[str]) -> tuple[User, Watch, float]:
    """The chat, used for so long; the user, what was seen, and how long it was."""
    command = [
        sys.executable,
        "-m",
        "flashllm",
        "chat",
        *([options.model] if options.model else []),
    ]
    command += ["--memory", str(options.memory), "-n", str(TOKENS), "--temp", "0.7"]
    command += ["--no-quick-profile"]
    with ChatTerminal(command, os.environ) as terminal:
        user = User(terminal, options.seed)
        user.open()
        with Watch(terminal.process.pid, log) as watch, _interruptible():
            _use(user, watch, 60 * options.minutes)
        seconds = watch.seconds
        _leave(terminal)
    return user, watch, seconds


def _use(user: User, watch: Watch, seconds: float) -> None:
    told = 0.0
    watch.write({"kind": "action", "seconds": round(watch.seconds, 2), "action": MOST})
    user.reach_most()
    while watch.seconds < seconds:
        user.keeps_largest = watch.seconds < beginning_seconds(seconds)
        action = user.choose(spares_engine=watch.seconds > LOSING_SHARE * seconds)
        watch.write({"kind": "action", "seconds": round(watch.seconds, 2), "action": action})
        user.do(action)
        if watch.seconds - told >= TELL_SECONDS and watch.looks:
            told = watch.seconds
            mib = watch.looks[-1].rss_bytes / (1 << 20)
            remark(NAME, f"{told / 60:.0f} min, {user.counts.total()} actions, {mib:.0f} MiB")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl+C ends the use, and what was seen until then is judged."""
    try:
        yield
    except KeyboardInterrupt:
        remark(NAME, "interrupted; this is what was seen until then")


def _leave(terminal: ChatTerminal) -> None:
    """By Ctrl+Q; `ReadFailed` where that does not leave, or not in order."""
    terminal.type(CTRL_Q)
    until = time.monotonic() + LEAVE_SECONDS
    while terminal.process.poll() is None and time.monotonic() < until:
        terminal.read(0.05)
    try:
        code = terminal.process.wait(0)
    except subprocess.TimeoutExpired:
        raise ReadFailed(f"the chat was not left within {LEAVE_SECONDS:.0f} s") from None
    if code:
        raise ReadFailed(f"the chat ended with code {code}: {terminal.last_words!r}")
    if terminal.attributes() != terminal.attributes_at_start:
        raise ReadFailed("the chat left the terminal with other attributes than it had before")


def tell(user: User, seconds: float, findings: Sequence[Finding]) -> bool:
    """Prints the summary; whether all limits hold."""
    counts = ", ".join(f"{count} {name}" for name, count in user.counts.most_common())
    print(f"{seconds:.0f} s, {user.counts.total()} actions: {counts}")
    print(markdown([TITLES, *(finding.row() for finding in findings)]))
    return all(finding.holds for finding in findings)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="a model, by name or directory (the demo)")
    add("--minutes", type=argument(parse_number), default=MINUTES, metavar="N", help="(60)")
    add("--memory", type=argument(parse_size), default=MEMORY_BYTES, metavar="SIZE",
        help="the ceiling of all processes together (280MiB)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of what is done, and in which order (0)")
    add("--log", type=Path, default=Path("build/soak.jsonl"), metavar="FILE",
        help="lines of JSON (build/soak.jsonl)")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code, 1 where a limit does not hold."""
    options = parse(arguments)
    settings = {key: str(value) for key, value in vars(options).items()}
    header: dict[str, Any] = run_header(None, settings)
    options.log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flashllm-soak-") as home, options.log.open("w") as log:
        # A home of its own, so that no conversation of the user's is touched.
        os.environ["FLASHLLM_HOME"] = home
        if options.model is None:
            ask("run", "-p", "x", "-n", "1", "--json")  # converts the demo before the time begins
        furnish(options.model or "demo", options.seed)
        log.write(f"{json.dumps({'kind': 'header', **header})}\n")
        try:
            user, watch, seconds = use(options, log)
        except FlashllmError as error:
            remark(NAME, f"{error}; the log is {options.log}")
            return 1
        findings = judge(watch.looks, options.memory, seconds)
        holds = tell(user, seconds, findings)
        result = {
            "header": header,
            "complete": True,
            "seconds": seconds,
            "actions": dict(user.counts),
            "findings": [asdict(finding) | {"holds": finding.holds} for finding in findings],
        }
        watch.write({"kind": "result", **result})
    print(json.dumps(result))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
