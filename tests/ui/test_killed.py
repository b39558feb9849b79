"""kill -9 in mid-answer: what was asked is kept, and what had been answered a second before."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.ui.chat.autosave import EVERY_SECONDS
from tests.support.screens import WAIT_SECONDS
from tests.ui.test_terminal import Terminal

CONVERSATIONS, TIMES = 2, 5
"""At a time, since each mostly waits; and how often each is killed and goes on."""
KEPT_SECONDS = 1.0


def numbers(turn: int, output: bytes) -> list[int]:
    """Which words of this answer; those of earlier ones are on the screen too."""
    return [int(found) for found in re.findall(rb"w%dn(\d+)x" % turn, output)]


def kept_turns(home: Path) -> list[Turn]:
    with SessionStore(home / "sessions.db") as store:
        latest = store.latest()
        assert latest is not None
        return store.load(latest).conversation.path()


def test_ten_kills_lose_nothing_older_than_a_second(tmp_path: Path) -> None:
    homes = [tmp_path / str(number) for number in range(CONVERSATIONS)]
    with ThreadPoolExecutor(CONVERSATIONS) as threads:
        for ended in [threads.submit(kill_again_and_again, home) for home in homes]:
            ended.result()


def kill_again_and_again(home: Path) -> None:
    dice = random.Random(home.name)
    for turn in range(TIMES):
        answer: list[object] = []
        for number in range(500):
            answer += [0.02, f"w{turn}n{number}x "]
        # Each time the conversation of the last time goes on, as its user would have it.
        options = ["--continue"] if turn else []
        environment = {"FLASHLLM_HOME": str(home)}
        terminal = Terminal([answer], "chat", "m", *options, environment=environment)
        terminal.read_until(b"ready")
        begin = len(terminal.output)
        terminal.write(f"question{turn}\r".encode())
        until = time.monotonic() + 1.1 + dice.random() * EVERY_SECONDS
        seen: list[tuple[float, int]] = []
        while time.monotonic() < until or len(seen) < 3:
            terminal.shows(b"never there", 0.02)
            shown = numbers(turn, terminal.output[begin:])
            seen += [(time.monotonic(), max(shown))] if shown else []
        killed = time.monotonic()
        os.kill(terminal.process.pid, signal.SIGKILL)
        assert terminal.process.wait(WAIT_SECONDS) == -signal.SIGKILL
        terminal.vanish()
        owed = max((number for when, number in seen if when <= killed - KEPT_SECONDS), default=-1)
        turns = kept_turns(home)
        assert [one.text for one in turns if one.role == "user"] == [
            f"question{number}" for number in range(turn + 1)
        ]
        last = turns[-1] if turns[-1].role == "assistant" else None
        assert owed < 0 or last is not None
        kept = numbers(turn, last.text.encode()) if last else []
        assert kept == list(range(len(kept))), "no gap, nothing twice"
        assert len(kept) > owed


def test_an_answer_that_was_cut_off_is_shown_again_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    terminal = Terminal([["first ", "second ", 60.0]], "chat", "m")
    terminal.read_until(b"ready")
    terminal.write(b"hello\r")
    terminal.read_until(b"second")
    time.sleep(1.0)
    os.kill(terminal.process.pid, signal.SIGKILL)
    terminal.process.wait(WAIT_SECONDS)
    terminal.vanish()
    again = Terminal([["third ", "end."]], "chat", "m", "--continue")
    again.read_until(b"second")
    again.read_until(b"ready")
    again.write(b"/continue\r")
    again.read_until(b"end.")
    again.write(b"\x11")
    again.read_all()
    assert again.process.wait(WAIT_SECONDS) == 0
    assert [turn.text for turn in kept_turns(tmp_path)] == ["hello", "first second third end."]
