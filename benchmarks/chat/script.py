"""The chat over a scripted engine, for `benchmarks.chat`; it runs in a process of its own.

    python -c "from benchmarks.chat.script import main; main()" SCRIPT OUT flashllm's arguments

SCRIPT is JSON: `tokens`, how many, and `seconds`, between two of them. What came to the widgets of
an answer is written to OUT when it is complete.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from flashllm.engine.process.launcher import EngineLauncher
from flashllm.options import DEFAULT_OPTIONS

SCRIPT = "CHAT_SCRIPT"
WORDS = ("the", "sea", "is", "a", "large", "body", "of", "salt", "water", "and", "waves", "move")
LINE_WORDS, PARAGRAPH_LINES = 14, 6


def text_of(tokens: int) -> list[str]:
    """Tokens that make paragraphs, lists and code, each of them another one."""
    pieces: list[str] = []
    for number in range(tokens):
        word = f"{WORDS[number % len(WORDS)]}{number}"
        if number and number % (LINE_WORDS * PARAGRAPH_LINES) == 0:
            pieces.append(f"\n\n{word}")
        elif number and number % LINE_WORDS == 0:
            pieces.append(f"\n- {word}" if number // LINE_WORDS % 3 == 1 else f"\n{word}")
        else:
            pieces.append(f" {word}" if number else word)
    return pieces


def main() -> None:
    """Runs the chat, its engine replaced; that runs in a process of its own, as the real one."""
    os.environ[SCRIPT] = sys.argv[1]
    opening = importlib.import_module("flashllm.cli.shared.open_model")
    opening.start_launcher = lambda _: EngineLauncher(  # type: ignore[attr-defined]
        DEFAULT_OPTIONS, f"{__name__}:open_engine"
    )
    _watch(Path(sys.argv[2]))
    from flashllm.cli.main import main as flashllm_main

    sys.exit(flashllm_main(sys.argv[3:]))


def open_engine(*_: object) -> Any:
    """In the engine's process: an engine that says what the script says."""
    script = json.loads(os.environ[SCRIPT])
    fake = importlib.import_module("tests.support.fake_engine")
    steps: list[Any] = []
    for piece in text_of(script["tokens"]):
        steps += [script["seconds"], piece] if script["seconds"] else [piece]
    return fake.FakeModel(steps, context=1_000_000)


def _watch(out: Path) -> None:
    from flashllm.ui.transcript.answer import Answer

    finish = Answer.finish

    async def finish_and_tell(self: Answer) -> None:
        await finish(self)
        if self.source:
            out.write_text(json.dumps({"shown": self.source, "said": self.shown_text}), "utf-8")

    Answer.finish = finish_and_tell  # type: ignore[method-assign]
