"""`python -m benchmarks.chat.turns`: what it makes of the memory after each turn."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.chat import turns
from benchmarks.chat.terminal import ChatTerminal
from benchmarks.chat.turns import ChatTurns, TurnMemory, summary_of, table_of, turns_of
from benchmarks.memory_limit import Usage
from flashllm.errors import ReadFailed
from flashllm.units import MIB

CEILING = 480 * MIB


def memories(growth_bytes: int, count: int = 200) -> list[TurnMemory]:
    """80 MiB at turn 50, and so much more at the last one."""
    last = max(count - turns.SETTLED_TURN, 1)
    return [
        TurnMemory(turn, float(turn), 80 * MIB + (turn - 50) * growth_bytes // last, 290 * MIB)
        for turn in range(count + 1)
    ]


def test_growth_is_counted_from_the_fiftieth_turn() -> None:
    found = summary_of(memories(3 * MIB), CEILING, None)
    assert found["application_growth_bytes"] == 3 * MIB
    assert found["turns"] == 200
    assert found["both_peak_bytes"] == 373 * MIB
    assert found["met"]


@pytest.mark.parametrize(
    ("growth", "ceiling", "kills"),
    [(6 * MIB, CEILING, 0), (3 * MIB, 372 * MIB, 0), (3 * MIB, CEILING, 1)],
    ids=["grows", "above the ceiling", "killed"],
)
def test_what_is_not_as_wanted_is_said(growth: int, ceiling: int, kills: int) -> None:
    usage = Usage(544 * MIB, 400 * MIB, kills, swap_limited=True, version=1)
    assert not summary_of(memories(growth), ceiling, usage)["met"]


def test_of_too_few_turns_no_growth_is_known() -> None:
    assert summary_of(memories(0, 20), CEILING, None)["application_growth_bytes"] is None


def test_the_table_has_the_turn_that_growth_is_counted_from() -> None:
    rows = table_of(memories(3 * MIB)).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 0", "| 50", "| 100", "| 200"]


class FakeTerminal:
    """Types into a database: each question is answered when something is read."""

    def __init__(self, database: Path, answers: bool) -> None:
        self.typed: list[str] = []
        self.process = type("Process", (), {"pid": 1})
        self._database, self._answers = database, answers

    def wait_for(self, _text: str) -> float:
        return 0.0

    def type(self, text: str) -> float:
        self.typed.append(text)
        return 0.0

    def read(self, _seconds: float) -> bool:
        if self._answers:
            with sqlite3.connect(self._database) as connection:
                connection.execute("INSERT INTO turn VALUES ('assistant', 'stop')")
        return self._answers

    @property
    def last_words(self) -> str:
        return "killed"

    def forget(self) -> None:
        """Nothing was kept."""


def chat_of(tmp_path: Path, *, answers: bool) -> tuple[ChatTurns, FakeTerminal]:
    database = tmp_path / "sessions.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE turn (role TEXT, finish_reason TEXT)")
    terminal: Any = FakeTerminal(database, answers)
    return ChatTurns(cast("ChatTerminal", terminal), database), terminal


def test_questions_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatTurns, "memory", lambda _self, turn, at: TurnMemory(turn, at, 1, 2))
    chat, terminal = chat_of(tmp_path, answers=True)
    found = list(turns_of(chat, ["a?", "b?"], 3, conversation_turns=2))
    assert [one.turn for one in found] == [0, 1, 2, 3]
    assert found[0].both_bytes == 3
    assert terminal.typed == ["a?\r", "b?\r", "\x0e", "a?\r"]


def test_a_chat_that_is_gone_is_an_error(tmp_path: Path) -> None:
    chat, _ = chat_of(tmp_path, answers=False)
    with pytest.raises(ReadFailed, match="did not answer 'a\\?'; it ended with 'killed'"):
        chat.ask("a?")
