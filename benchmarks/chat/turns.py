"""Memory of the chat over many turns: `python -m benchmarks.chat.turns --turns 1000 [MODEL]`.

Questions are typed into the real chat, on a pseudo-terminal, each when the answer before it is
complete. After every turn the resident memory of the application and of the engine is noted. With
`--limit` both run in a control group of that size, in which the kernel kills what takes more.

What is wanted: nothing is killed, both together stay below the ceiling, and the application takes
at most 5 MiB more after turn 50 than at turn 50. The last line is JSON; the exit code is 1 where a
goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import psutil

import flashllm
from benchmarks.chat.terminal import ChatTerminal
from benchmarks.memory_limit import MemoryGroup, Usage, limited
from benchmarks.own_command import ask, ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.errors import ReadFailed
from flashllm.settings.values import parse_positive, parse_size
from flashllm.system import paths
from flashllm.units import MIB

NAME = "chat.turns"
READY = "ready"
TURNS = 1000
SETTLED_TURN = 50
"""From here on the application should not grow: all that is kept once is there by then."""
GROWTH_BYTES_MAX = 5 * MIB
ANSWER_SECONDS = 120.0
TABLE_EVERY = 100
_ANSWERED = "SELECT count(*) FROM turn WHERE role = 'assistant' AND finish_reason IS NOT NULL"


@dataclass(frozen=True, slots=True)
class TurnMemory:
    """Resident memory of both processes after a turn; turn 0 is before the first."""

    turn: int
    seconds: float
    application_bytes: int
    engine_bytes: int

    @property
    def both_bytes(self) -> int:
        """Of the application and the engine together."""
        return self.application_bytes + self.engine_bytes


class ChatTurns:
    """A chat on a terminal that is asked one question after the other.

    It keeps its conversations, and they tell when an answer is complete.
    """

    def __init__(self, terminal: ChatTerminal, database: Path) -> None:
        """`database` is where the chat keeps conversations: `paths.database_file()` of its home."""
        self._terminal = terminal
        self._database = database
        self._process = psutil.Process(terminal.process.pid)

    def wait_until_ready(self) -> None:
        """Waits until the model is open."""
        self._terminal.wait_for(READY)

    def ask(self, question: str) -> None:
        """Asks, and waits for the whole answer. `ReadFailed` where none comes."""
        before, until = self._answered(), time.monotonic() + ANSWER_SECONDS
        self._terminal.type(question + "\r")
        while self._answered() == before:
            if not self._terminal.read(0.05) or time.monotonic() > until:
                end = self._terminal.last_words
                raise ReadFailed(f"the chat did not answer {question!r}; it ended with {end!r}")
        self._terminal.forget()

    def begin_conversation(self) -> None:
        """Ctrl+N: what was said before is kept, and is on the screen no longer."""
        self._terminal.type("\x0e")
        self._terminal.read(0.5)

    def memory(self, turn: int, seconds: float) -> TurnMemory:
        """What both processes take now."""
        engine = 0
        for child in self._process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                engine += int(child.memory_info().rss)
        return TurnMemory(turn, seconds, int(self._process.memory_info().rss), engine)

    def _answered(self) -> int:
        """Complete answers in the database; none while there is no database."""
        uri = f"{self._database.as_uri()}?mode=ro"
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as connection,
        ):
            return int(connection.execute(_ANSWERED).fetchone()[0])
        return 0


def turns_of(
    chat: ChatTurns, questions: Sequence[str], turns: int, conversation_turns: int | None = None
) -> Iterator[TurnMemory]:
    """Asks so many questions, in turn; yields the memory before the first and after each.

    A new conversation begins after `conversation_turns`, if that is given.
    """
    began = time.monotonic()
    chat.wait_until_ready()
    yield chat.memory(0, time.monotonic() - began)
    asked = zip(range(1, turns + 1), itertools.cycle(questions), strict=False)
    for turn, question in asked:
        chat.ask(question)
        yield chat.memory(turn, time.monotonic() - began)
        if conversation_turns and turn % conversation_turns == 0:
            chat.begin_conversation()


def questions_of(file: Path | None) -> list[str]:
    """The lines of a file, or questions that the demo was not trained on."""
    if file is not None:
        return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    path = Path(flashllm.__file__).parent / "demo" / "heldout.jsonl"
    lines = path.read_text("utf-8").splitlines()
    return [str(json.loads(line)["messages"][0]["content"]) for line in lines]


def summary_of(found: Sequence[TurnMemory], memory: int, usage: Usage | None) -> dict[str, Any]:
    """Growth and peaks, what was wanted of them, and whether all of it was met."""
    settled = next((one for one in found if one.turn == SETTLED_TURN), None)
    after = [one.application_bytes for one in found if one.turn >= SETTLED_TURN]
    growth = max(after) - settled.application_bytes if settled is not None else None
    peak = max(one.both_bytes for one in found)
    kills = usage.kills if usage is not None else None
    return {
        "turns": found[-1].turn,
        "application_growth_bytes": growth,
        "both_peak_bytes": peak,
        "ceiling_bytes": memory,
        "group": None if usage is None else asdict(usage),
        "met": (growth is None or growth <= GROWTH_BYTES_MAX) and peak <= memory and not kills,
    }


def table_of(found: Sequence[TurnMemory], every: int = TABLE_EVERY) -> str:
    """A row for every hundredth turn, and for those where growth is counted from."""
    rows = [["turn", "application, MiB", "engine, MiB", "both, MiB", "seconds"]]
    shown = (one for one in found if one.turn % every == 0 or one.turn == SETTLED_TURN)
    rows += [
        [
            str(one.turn),
            f"{one.application_bytes / MIB:.1f}",
            f"{one.engine_bytes / MIB:.1f}",
            f"{one.both_bytes / MIB:.1f}",
            f"{one.seconds:.0f}",
        ]
        for one in shown
    ]
    return markdown(rows)


def measure(options: argparse.Namespace, home: Path, log: TextIO | None) -> dict[str, Any]:
    """All turns; a line of `log` after each."""
    os.environ["FLASHLLM_HOME"] = str(home)
    ask("run", "-p", "Hello", "-n", "1", "--json")  # converts the demo where that was never done
    command = [
        sys.executable,
        "-m",
        "flashllm",
        "chat",
        *([options.model] if options.model else []),
    ]
    command += ["--memory", str(options.memory), "--no-quick-profile", "-n", str(options.tokens)]
    found: list[TurnMemory] = []
    problem = ""
    with contextlib.ExitStack() as held:
        group: MemoryGroup | None = None
        if options.limit is not None:
            group = held.enter_context(limited(options.limit))
            group.check_joinable()
            command = group.command(command)
        terminal = held.enter_context(ChatTerminal(command, os.environ))
        chat = ChatTurns(terminal, paths.database_file())
        questions = questions_of(options.questions)
        try:
            for one in turns_of(chat, questions, options.turns, options.conversation_turns):
                found.append(one)
                if log is not None:
                    print(json.dumps(asdict(one)), file=log, flush=True)
                if one.turn % TABLE_EVERY == 0:
                    remark(NAME, f"turn {one.turn}: {one.both_bytes / MIB:.1f} MiB")
        except (ReadFailed, psutil.Error) as error:  # killed, perhaps: what was seen is shown
            problem = str(error)
        except KeyboardInterrupt:
            problem = "interrupted"
        usage = group.usage() if group is not None else None
    if not found:
        raise ReadFailed(problem)
    print(table_of(found))
    summary = summary_of(found, options.memory, usage)
    return summary | {"problem": problem, "met": summary["met"] and not problem}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, size = parser.add_argument, argument(parse_size)
    positive = argument(parse_positive)
    add("model", nargs="?", metavar="MODEL", help="a converted model (the demo)")
    add("--turns", type=positive, default=TURNS, metavar="N", help=f"({TURNS})")
    add("--memory", type=size, default=480 * MIB, metavar="SIZE", help="of both (480MiB)")
    add("--limit", type=size, metavar="SIZE", help="of a control group for both (none)")
    add("--tokens", type=positive, default=48, metavar="N", help="of an answer, at most (48)")
    add("--questions", type=Path, metavar="FILE", help="one a line (the demo's, held out)")
    add("--conversation-turns", type=positive, metavar="N", help="a new conversation after each")
    add("--log", type=Path, metavar="FILE", help="a line of JSON after each turn")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code, 1 where a goal is missed."""
    options = parse(arguments)
    with contextlib.ExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="flashllm-turns-")))
        log = held.enter_context(options.log.open("w")) if options.log is not None else None
        summary = measure(options, home, log)
    settings = {key: str(value) for key, value in vars(options).items()}
    header = run_header(Path(options.model) if options.model else None, settings)
    print(json.dumps({"header": header, "complete": not summary["problem"], **summary}))
    return 0 if summary["met"] else 1


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
