"""`python -m benchmarks.chat`: what it says of the rounds, without a chat."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import chat
from tests.bench.stolen_time import take_away


class FakeTerminal:
    """Shows whatever is waited for, a little later each time."""

    def __init__(self) -> None:
        self.started, self._now = 0.0, 0.0

    def wait_for(self, *_: Any) -> float:
        self._now += 0.1
        return self._now

    @contextlib.contextmanager
    def open(self, *_: Any) -> Iterator[FakeTerminal]:
        yield self


@pytest.fixture(autouse=True)
def no_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", "")  # put back afterwards: Bench sets it
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(chat, "ask", lambda *_: {"decode": {"tokens_per_second": 100.0}})
    monkeypatch.setattr(chat.Bench, "_chat", FakeTerminal().open)
    monkeypatch.setattr(chat.Bench, "_chat_rate", lambda *_: 99.0)


def test_rounds_that_the_machine_was_taken_away_in_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first start is none of the rounds: it may have to compile.
    take_away(monkeypatch, [0.5, 0.01, 0.9, 0.02, 0.06])
    chat.main(["--what", "first-frame", "decode", "--rounds", "2"])
    shown = capsys.readouterr()
    frame, decode = json.loads(shown.out.splitlines()[-1])["figures"]
    assert frame["stolen_shares"] == pytest.approx([0.01, 0.9])
    assert decode["stolen_shares"] == pytest.approx([0.02, 0.06])
    assert len(frame["values"]) == len(decode["values"]) == 2, "none is dropped"
    rows = [line.split(" | ")[-1] for line in shown.out.splitlines() if line.startswith("| ")]
    assert rows == ["stolen, at most |", "--- |", "90.0% |", "6.0% |"]
    assert "stolen 2.0%" in shown.err
    assert shown.err.count("2 of 4 runs lost more than 5%") == 1


def test_a_quiet_machine_is_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take_away(monkeypatch, [])
    chat.main(["--what", "decode", "--rounds", "1"])
    assert "lost more" not in capsys.readouterr().err
