"""What a newcomer does first, done and timed: `python -m benchmarks.first_hour [--out FILE]`.

In an empty folder, with homes of its own: clone the project, `make chat`, ten questions, F5;
`flashllm models`; then a model by its name, from a server on the loopback that speaks the hub's
interface: `pull`, `convert`, `chat`. Each step's seconds run from the command, or from Enter, to
its result. The transcript is Markdown, and what it shows is what was printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chat.terminal import ChatTerminal
from benchmarks.chat.turns import ChatTurns
from flashllm.bench.header import machine
from tests.support.hub_server import serving

REPOSITORY = Path(__file__).parents[1]
FIELD, READY, BOTH_DEMOS = "something; / for commands", "ready", "2 of 2 models"
QUESTIONS = (
    "hi",
    "what is a lake?",
    "And what about oceans?",
    "what's the opposite of brave",
    "give me a sentence with music",
    "is a dog an animal?",
    "hapiness",
    "what does flibber mean?",
    "what is 17 + 4?",
    "who are you?",
)
ANSWER_SECONDS = 60.0
INSTALL_SECONDS = 1200.0
LINES_MAX = 40
F5, CTRL_Q, ESCAPE = "\x1b[15~", "\x11", "\x1b"


@dataclass(slots=True)
class Transcript:
    """The page, in parts, and what the summary table will have."""

    parts: list[str] = field(default_factory=list)
    rows: list[tuple[str, float]] = field(default_factory=list)

    def add(self, title: str, seconds: float, text: str) -> None:
        """A step: what was done, how long it took, what came."""
        self.rows.append((title, seconds))
        lines = text.rstrip().splitlines()
        left_out = [f"[{len(lines) - LINES_MAX} more lines]"] if len(lines) > LINES_MAX else []
        shown = "\n".join([*lines[:LINES_MAX], *left_out])
        self.parts.append(f"### {title}: {seconds:.1f} s\n\n```\n{shown}\n```\n")

    def page(self, header: str) -> str:
        """All of it."""
        rows = "\n".join(f"| {title} | {seconds:.1f} |" for title, seconds in self.rows)
        return (
            "# The first hour\n\nMade by `python -m benchmarks.first_hour`: what a newcomer does "
            "first, in an empty folder, on\nthis machine:\n\n"
            f"```\n{header}\n```\n\n| step | seconds |\n| --- | --: |\n{rows}\n\n"
            + "\n".join(self.parts)
        )


class Newcomer:
    """Types commands in an empty folder, with a home of its own."""

    def __init__(self, folder: Path, transcript: Transcript) -> None:
        self.folder, self.transcript = folder, transcript
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLASHLLM_", "HF_"))}
        kept.pop("PYTHONPATH", None)
        self.environment = {
            **kept,
            "FLASHLLM_HOME": str(folder / "home"),
            "HF_HOME": str(folder / "huggingface"),
        }

    @property
    def database(self) -> Path:
        """Where the chat keeps its conversations."""
        return self.folder / "home" / "sessions.db"

    @property
    def project(self) -> Path:
        """Where the clone is."""
        return self.folder / "flashllm"

    def command(self, line: str, shown: str = "") -> str:
        """Runs a line; what it printed goes into the transcript and is returned."""
        began = time.monotonic()
        directory = self.project if self.project.exists() else self.folder
        done = subprocess.run(
            shlex.split(line), capture_output=True, text=True, cwd=directory, env=self.environment
        )
        seconds = time.monotonic() - began
        said = self.without_paths(done.stderr + done.stdout)
        if done.returncode:
            raise SystemExit(f"first_hour: `{line}` ended with {done.returncode}:\n{said}")
        title = shown or line.replace(".venv/bin/", "")
        self.transcript.add(f"`{title}`", seconds, said or "(nothing is printed)")
        return done.stdout

    def without_paths(self, text: str) -> str:
        """A text whose paths begin in the newcomer's home."""
        return text.replace(str(self.project), "~/flashllm").replace(str(self.folder), "~")

    @contextmanager
    def terminal(self, line: str) -> Iterator[ChatTerminal]:
        """A chat that was begun with a line, until its field and its engine are there."""
        with ChatTerminal(
            ["env", "-C", str(self.project), *shlex.split(line)], self.environment
        ) as terminal:
            terminal.wait_for(FIELD, seconds=INSTALL_SECONDS)
            terminal.wait_for(READY)
            yield terminal

    def ask(self, chat: ChatTurns, question: str) -> float:
        """Seconds from Enter to the complete answer, which is kept then."""
        began = time.monotonic()
        chat.ask(question)
        return time.monotonic() - began

    def last_answers(self) -> list[str]:
        """Those of the conversation that was saved last."""
        flashllm = str(self.project / ".venv/bin/flashllm")

        def said(*arguments: str) -> str:
            return subprocess.run(
                [flashllm, "sessions", *arguments],
                capture_output=True, text=True, check=True, env=self.environment,
            ).stdout  # fmt: skip

        newest = said("list").splitlines()
        number = next(line.split()[0] for line in newest if line.split()[0].isdigit())
        record = json.loads(said("export", number))
        return [turn["text"] for turn in record["turns"] if turn["role"] == "assistant"]


def chat_on_the_demo(newcomer: Newcomer, line: str = "make chat") -> None:
    """Opens the chat, asks ten questions, presses F5."""
    began = time.monotonic()
    with newcomer.terminal(line) as terminal:
        opened = time.monotonic() - began
        newcomer.transcript.add(f"`{line}`, to the model being ready", opened, READY)
        chat = ChatTurns(terminal, newcomer.database)
        times = [newcomer.ask(chat, question) for question in QUESTIONS]
        terminal.forget()
        shown = -terminal.type(F5)
        shown += terminal.wait_for(BOTH_DEMOS)
        terminal.read(0.5)
        models = terminal.last_words.replace("─", "").split(BOTH_DEMOS)[-1]
        terminal.type(ESCAPE)
        terminal.read(0.5)
        terminal.type(CTRL_Q)
        terminal.process.wait(timeout=ANSWER_SECONDS)
    for question, answer, whole in zip(QUESTIONS, newcomer.last_answers(), times, strict=True):
        newcomer.transcript.add(f"“{question}”", whole, answer)
    newcomer.transcript.add(
        "F5, the list of models", shown, newcomer.without_paths(BOTH_DEMOS + models)
    )


def chat_on_a_pulled_model(newcomer: Newcomer) -> None:
    """A model by its name: from a hub, converted, asked."""
    with serving() as hub:
        hub.add("org/dictionary", newcomer.project / "flashllm" / "demo")
        newcomer.environment["HF_ENDPOINT"] = hub.address
        newcomer.command(".venv/bin/flashllm pull org/dictionary --dry-run")
        newcomer.command(".venv/bin/flashllm pull org/dictionary")
    newcomer.command(".venv/bin/flashllm convert org/dictionary")
    began = time.monotonic()
    with newcomer.terminal(".venv/bin/flashllm chat dictionary") as terminal:
        opened = time.monotonic() - began
        newcomer.transcript.add("`flashllm chat dictionary`", opened, READY)
        chat = ChatTurns(terminal, newcomer.database)
        whole = newcomer.ask(chat, "What does river mean?")
        terminal.type(CTRL_Q)
        terminal.process.wait(timeout=ANSWER_SECONDS)
    newcomer.transcript.add("“What does river mean?”", whole, newcomer.last_answers()[-1])


def first_hour(folder: Path, repository: str) -> Transcript:
    """All steps, in an empty folder."""
    transcript = Transcript()
    newcomer = Newcomer(folder, transcript)
    newcomer.command(f"git clone --quiet {shlex.quote(repository)} flashllm", "git clone ...")
    chat_on_the_demo(newcomer)
    newcomer.command(".venv/bin/flashllm models")
    chat_on_a_pulled_model(newcomer)
    newcomer.command(".venv/bin/flashllm ls")
    return transcript


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", default=str(REPOSITORY), help="what is cloned")
    parser.add_argument("--out", type=Path, help="write the page here (default: standard output)")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        transcript = first_hour(Path(folder), args.repository)
    page = transcript.page(json.dumps(machine(), indent=2, default=str))
    if args.out is None:
        sys.stdout.write(page)
    else:
        args.out.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
