"""How quick the chat is: `python -m benchmarks.chat [MODEL] [--memory SIZE]`.

Everything goes through a real pseudo-terminal, as a user's keys and screen do:

- first frame: from the start of `flashllm chat` to the field in which a question is written.
- echo: from a key to its character on the screen, while a scripted engine streams.
- stop: from Esc to the remark that the answer was stopped.
- stream: tokens a second of a scripted engine that reach the screen, and whether all of them do.
- first word: from Enter to the first word of an answer of the model, of the first answer of a
  process and of the second, and what of it the engine took to read the prompt. No goal is set:
  compare two versions by turns.
- decode: tokens a second of the model in the chat over `flashllm run`, interleaved: the
  median, and where it lies with 95 % (more or less: rounds that follow each other share a run).
  Under a ceiling (--memory) twice: the chat with the same one, of which the application takes its
  part, and with so much more as that part is, so that it has as many slots for neurons as `run`.

A model without a tokenizer (a synthetic one) gets one that is made up, beside links to its files.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.chat.figures import Figure, figure_of
from benchmarks.chat.first_word import first_word_seconds
from benchmarks.chat.script import text_of
from benchmarks.chat.terminal import ChatTerminal
from benchmarks.own_command import ask, ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.steal_time import (
    ProcessorTime,
    format_steal_share,
    stolen_warning,
)
from flashllm.bench.tokens.telemetry_cost import median_interval
from flashllm.cli.shared.flags import argument
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.engine.process.launcher import GROWTH_BYTES
from flashllm.errors import ReadFailed
from flashllm.flash.manifest import read_manifest
from flashllm.settings.values import parse_positive, parse_size

NAME = "chat"
READY, FIELD, STOPPED = "ready", "something; / for commands", "stopped"  # behind the cursor
KEYS = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿ"
"""Each is typed once, and none is in what the scripted engine says."""
KEY_SECONDS = (0.08, 0.14, 0.23, 0.11, 0.42, 0.17)
"""From one key to the next, as people type: text must not be shown when a key is to come."""
QUESTION = "What does carbon mean?"
"""The demo's longest answer: 46 tokens."""
SECOND_QUESTION = "What does ocean mean?"
BYTES = 256
ANSWER_SECONDS = 600.0
ROUNDS = 5
DECODE_ROUNDS, DECODE_ROUNDS_MAX = 30, 240
DECODE_HALF_WIDTH = 0.02
"""Rounds of decode go on until their median is known this well, to either side with 95 %, or there
are too many: what is wanted is within 2 %, and runs of one kind differ by 10 to 30."""
Shares = list[float | None]


@contextlib.contextmanager
def watched(stolen_shares: Shares) -> Iterator[None]:
    """A round, whose share of stolen time is added when it ends."""
    before = ProcessorTime.now()
    yield
    stolen_shares.append(ProcessorTime.now().stolen_share_since(before))


class Bench:
    """Measures in a home of its own, so that no conversation of the user's is touched."""

    def __init__(self, home: Path, rounds: int | None) -> None:
        os.environ["FLASHLLM_HOME"] = str(home)
        # Otherwise each start would compile the application, which a user's does once.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._out = home / "shown.json"
        self._rounds = rounds or ROUNDS
        self._decode_rounds = rounds or DECODE_ROUNDS
        self._decode_rounds_max = rounds or DECODE_ROUNDS_MAX
        self._application_bytes = 0
        """What the application had of the ceiling, in the chat that was opened last."""

    def first_frame(self) -> Figure:
        """What a second start takes: the demo is converted, and files are in the page cache."""
        seconds, stolen = [], Shares()
        for _ in range(self._rounds + 1):
            with watched(stolen), self._chat() as terminal:
                seconds.append(terminal.wait_for(FIELD) - terminal.started)
                terminal.wait_for(READY)
        values = tuple(1e3 * value for value in seconds[1:])
        return figure_of(
            "first frame", "ms", values, ("at most", 500), statistics.median(values), stolen[1:]
        )

    def echo(self, token_seconds: float) -> Figure:
        """Keys at an uneven pace, each another character, while an answer streams."""
        pauses = list(itertools.islice(itertools.cycle(KEY_SECONDS), len(KEYS)))
        tokens = int(sum(pauses) / max(token_seconds, 0.002)) + 400
        waits, stolen = [], Shares()
        for _ in range(2):
            with watched(stolen), self._scripted(tokens, token_seconds) as terminal:
                self._ask_scripted(terminal)
                terminal.read(1.0)
                for key, pause in zip(KEYS, pauses, strict=True):
                    since, typed = terminal.position, terminal.type(key)
                    waits.append(1e3 * (terminal.wait_for(key, since) - typed))
                    terminal.read(max(0.0, typed + pause - time.monotonic()))
        ranked = sorted(waits)
        p95 = ranked[int(0.95 * len(ranked))]
        name = f"key to echo, p95, while {1 / token_seconds:.0f} tokens/s stream"
        return figure_of(name, "ms", tuple(waits), ("at most", 50), p95, stolen)

    def stop(self, token_seconds: float) -> Figure:
        """Esc alone, in mid-answer."""
        waits, stolen = [], Shares()
        for _ in range(self._rounds):
            with watched(stolen), self._scripted(100_000, token_seconds) as terminal:
                self._ask_scripted(terminal)
                terminal.read(1.0)
                since, pressed = terminal.position, terminal.type("\x1b")
                waits.append(1e3 * (terminal.wait_for(STOPPED, since) - pressed))
        return figure_of("Esc to stopped", "ms", tuple(waits), ("at most", 250), max(waits), stolen)

    def stream(self, tokens: int, token_seconds: float) -> list[Figure]:
        """All tokens of a long answer, as fast as they come."""
        rates, lost, stolen = [], [], Shares()
        wanted = "".join(text_of(tokens))
        last = text_of(tokens)[-1].strip()
        for _ in range(3):
            with watched(stolen), self._scripted(tokens, token_seconds) as terminal:
                asked = self._ask_scripted(terminal)
                rates.append(tokens / (terminal.wait_for(last) - asked))
                terminal.wait_for(FIELD, terminal.position - 1)
                lost.append(float(self._missing(wanted)))
        paced = f"{1 / token_seconds:.0f}/s" if token_seconds else "all at once"
        name = f"stream of {tokens:,} tokens ({paced})"
        return [
            figure_of(
                name, "tokens/s", tuple(rates), ("at least", 200), statistics.median(rates), stolen
            ),
            figure_of("characters lost of it", "", tuple(lost), ("at most", 0), max(lost)),
        ]

    def first_word(self, model: str | None, memory_bytes: int | None, tokens: int) -> list[Figure]:
        """Two questions to each new process; the first process may have to compile."""
        there = [model] if model else []
        options = ["--no-quick-profile", *_common_options(memory_bytes, tokens)]
        names = ("first answer", "second answer")
        shown: list[list[float]] = [[] for _ in names]
        engine: list[list[float]] = [[] for _ in names]
        stolen = [Shares() for _ in names]
        for _ in range(self._rounds + 1):
            with self._chat(*there, *options) as terminal:
                terminal.wait_for(READY)
                before = ""
                for answer, question in enumerate((QUESTION, SECOND_QUESTION)):
                    with watched(stolen[answer]):
                        entered, since = self._ask(terminal, question), terminal.position
                        terminal.wait_for(READY, since, ANSWER_SECONDS)
                    turn = self._kept(terminal, answers=answer + 1)
                    seconds = first_word_seconds(terminal, since, entered, turn.text, before)
                    shown[answer].append(1e3 * seconds)
                    engine[answer].append(turn.numbers["prefill"]["wall_ns"] / 1e6)
                    before = turn.text
        figures = []
        for answer, name in enumerate(names):
            for what, found, shares in (
                (f"Enter to first word, {name}", shown, stolen[answer][1:]),
                ("of it the engine, reading the prompt", engine, ()),
            ):
                values = tuple(found[answer][1:])
                figures.append(
                    figure_of(what, "ms", values, None, statistics.median(values), shares)
                )
        return figures

    def decode(self, model: str | None, memory_bytes: int | None, tokens: int) -> list[Figure]:
        """The same question, interleaved: run, chat, run, chat, ..."""
        there = [model] if model else []
        cases = ["decode, chat over run"]
        if memory_bytes is not None:
            cases = [f"{cases[0]}, {words}" for words in ("the same ceiling", "as many slots")]
        ratios: list[list[float]] = [[] for _ in cases]
        stolen = [Shares() for _ in cases]
        last = 0.0
        for number in range(self._decode_rounds_max):
            if number >= self._decode_rounds and all(_narrow(found) for found in ratios):
                break
            for case, name in enumerate(cases):
                with watched(stolen[case]):
                    last = last or self._run(there, _common_options(memory_bytes, tokens))
                    # Known by then: the first case was a chat with the same ceiling.
                    own = memory_bytes and memory_bytes + case * self._application_bytes
                    chat = self._chat_rate([*there, *_common_options(own, tokens)])
                    following = self._run(there, _common_options(memory_bytes, tokens))
                ratios[case].append(chat / statistics.mean((last, following)))
                lost = format_steal_share(stolen[case][-1])
                remark(NAME, f"{name}, round {number + 1}: run {last:.4g} and {following:.4g} "
                             f"tokens/s, chat {chat:.4g}, stolen {lost}")  # fmt: skip
                last = following
        return [
            figure_of(
                name,
                "",
                tuple(found),
                ("at least", 0.98),
                statistics.median(found),
                shares,
                median_interval(found),
            )
            for name, found, shares in zip(cases, ratios, stolen, strict=True)
        ]

    def _run(self, model: Sequence[str], options: Sequence[str]) -> float:
        report = ask("run", *model, "-p", QUESTION, "--json", *options)
        return float(report["decode"]["tokens_per_second"])

    def _chat_rate(self, arguments: Sequence[str]) -> float:
        with self._chat(*arguments) as terminal:
            terminal.wait_for(READY)
            self._application_bytes = terminal.rss_bytes() + GROWTH_BYTES
            self._ask(terminal, QUESTION)
            return float(self._kept(terminal).numbers["decode"]["tokens_per_second"])

    def _ask(self, terminal: ChatTerminal, question: str) -> float:
        """Types a question, and then Enter; returns when."""
        since = terminal.position
        terminal.type(question)
        terminal.wait_for(question[-1], since)
        return terminal.type("\r")

    def _kept(self, terminal: ChatTerminal, answers: int = 1) -> Turn:
        """The newest answer as it was kept, once there are so many and it is complete."""
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until:
            terminal.read(0.3)
            with SessionStore() as store:
                newest = store.latest()
                turns = [] if newest is None else store.load(newest).conversation.path()
            if len(turns) >= 2 * answers and turns[-1].finish_reason:
                return turns[-1]
        raise ReadFailed(f"the chat kept no answer within {ANSWER_SECONDS:.0f} s")

    def _chat(self, *arguments: str) -> ChatTerminal:
        command = [sys.executable, "-m", "flashllm", "chat", *arguments]
        return ChatTerminal(command, os.environ)

    def _scripted(self, tokens: int, seconds: float) -> ChatTerminal:
        script = json.dumps({"tokens": tokens, "seconds": seconds})
        self._out.unlink(missing_ok=True)
        code = "from benchmarks.chat.script import main; main()"
        command = [sys.executable, "-c", code, script, str(self._out), "chat", "m", "-n", "200000"]
        return ChatTerminal(command, os.environ)

    def _ask_scripted(self, terminal: ChatTerminal) -> float:
        terminal.wait_for(READY)
        asked = terminal.type("go\r")
        terminal.wait_for("the0")
        return asked

    def _missing(self, wanted: str) -> int:
        until = time.monotonic() + 30
        while not self._out.exists() and time.monotonic() < until:
            time.sleep(0.05)
        if not self._out.exists():
            return len(wanted)
        time.sleep(0.2)
        told = json.loads(self._out.read_text("utf-8"))
        shown = "".join(told["shown"].split())
        return abs(len(told["said"]) - len(wanted)) + (shown != "".join(wanted.split()))


def _narrow(ratios: Sequence[float]) -> bool:
    """Whether it is known where the median lies."""
    low, high = median_interval(ratios)
    return high - low <= 2 * DECODE_HALF_WIDTH


def _common_options(memory_bytes: int | None, tokens: int) -> list[str]:
    """Options that `run` and the chat have in common."""
    ceiling = [] if memory_bytes is None else ["--memory", str(memory_bytes)]
    return [*ceiling, "-n", str(tokens)]


def with_tokenizer(model: Path, folder: Path) -> Path:
    """The model, or links to its files with a tokenizer made up beside them, if it has none."""
    if any((model / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return model
    for path in model.iterdir():
        os.link(path, folder / path.name)
    size = read_manifest(model).spec.vocab_size
    pieces = {piece: number for number, piece in enumerate(_byte_pieces())}
    pieces |= {f"Ġw{number}": number for number in range(BYTES, size)}
    (folder / "vocab.json").write_text(json.dumps(pieces), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    return folder


def _byte_pieces() -> list[str]:
    """A printable character for each byte, as GPT-2's vocabulary spells them."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in printable else next(others)) for byte in range(BYTES)]


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """All figures, or those that were asked for."""
    bench, figures = Bench(folder / "home", options.rounds), []
    (folder / "home").mkdir()
    ask("run", "-p", QUESTION, "-n", "1", "--json")  # converts the demo where that was never done
    if "first-frame" in options.what:
        figures.append(bench.first_frame())
    if "echo" in options.what:
        figures += [bench.echo(0.05), bench.echo(0.004)]
    if "stop" in options.what:
        figures.append(bench.stop(0.02))
    if "stream" in options.what:
        figures += bench.stream(5_000, 0.004)
    if not {"first-word", "decode"}.intersection(options.what):
        return figures
    (folder / "model").mkdir()
    model = options.model and str(with_tokenizer(options.model, folder / "model"))
    if "first-word" in options.what:
        figures += bench.first_word(model, options.memory, options.tokens)
    if "decode" in options.what:
        figures += bench.decode(model, options.memory, options.tokens)
    return figures


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    kinds = ("first-frame", "echo", "stop", "stream", "first-word", "decode")
    add("model", type=Path, nargs="?", metavar="MODEL", help="of first-word and decode (the demo)")
    add("--what", nargs="+", choices=kinds, default=kinds, help="all, unless told otherwise")
    add("--memory", type=argument(parse_size), metavar="SIZE", help="ceiling of their processes")
    add("-n", "--tokens", type=argument(parse_positive), default=48, metavar="N", help="(48)")
    default = (
        f"({ROUNDS}; of decode, whose rates vary most, {DECODE_ROUNDS} to {DECODE_ROUNDS_MAX}, "
        f"until the median is known within {100 * DECODE_HALF_WIDTH:g} %%)"
    )
    add("--rounds", type=argument(parse_positive), metavar="N", help=default)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code, 1 where a goal is missed."""
    options = parse(arguments)
    beside = options.model.parent if options.model else None
    with tempfile.TemporaryDirectory(prefix="flashllm-chat-", dir=beside) as name:
        figures = measure(options, Path(name))
    titles = ["what", "median, or as named", "least to most", "n", "goal", "met", "stolen, at most"]
    print(markdown([titles, *(figure.row() for figure in figures)]))
    if warning := stolen_warning([share for one in figures for share in one.stolen_shares]):
        remark(NAME, warning)
    header = run_header(options.model, {key: str(value) for key, value in vars(options).items()})
    values = [{name: getattr(figure, name) for name in figure.__slots__} for figure in figures]
    print(json.dumps({"header": header, "complete": True, "figures": values}))
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
