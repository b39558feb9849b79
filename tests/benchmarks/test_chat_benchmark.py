"""`python -m benchmarks.chat`: what it says of the rounds, without a chat."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.chat import __main__
from flashllm.conversations.tree import Turn
from tests.support.stolen_time import take_away


class FakeTerminal:
    """Shows whatever is waited for, a little later each time."""

    def __init__(self) -> None:
        self.started, self._now = 0.0, 0.0

        self.position = 0

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
    monkeypatch.setattr(__main__, "ask", lambda *_: {"decode": {"tokens_per_second": 100.0}})
    monkeypatch.setattr(__main__.Bench, "_chat", FakeTerminal().open)
    monkeypatch.setattr(__main__.Bench, "_chat_rate", lambda *_: 99.0)


def test_rounds_that_the_machine_was_taken_away_in_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first start is none of the rounds: it may have to compile.
    take_away(monkeypatch, [0.5, 0.01, 0.9, 0.02, 0.06])
    __main__.main(["--what", "first-frame", "decode", "--rounds", "2"])
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
    __main__.main(["--what", "decode", "--rounds", "1"])
    assert "lost more" not in capsys.readouterr().err


def test_rounds_go_on_until_the_median_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = itertools.cycle([80.0, 130.0])
    monkeypatch.setattr(__main__.Bench, "_chat_rate", lambda *_: next(rates))
    __main__.main(["--what", "decode"])
    shown = capsys.readouterr().out
    decode = json.loads(shown.splitlines()[-1])["figures"][0]
    assert len(decode["values"]) == __main__.DECODE_ROUNDS_MAX
    assert decode["interval"] == pytest.approx([0.8, 1.3])
    assert decode["number"] == pytest.approx(1.05)
    assert "1.05 (95 %: 0.8 to 1.3)" in shown


def test_rounds_that_agree_are_few(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = itertools.cycle([98.0, 99.0, 100.0, 101.0])
    monkeypatch.setattr(__main__.Bench, "_chat_rate", lambda *_: next(rates))
    __main__.main(["--what", "decode"])
    decode = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"][0]
    assert len(decode["values"]) == __main__.DECODE_ROUNDS
    low, high = decode["interval"]
    assert 0.98 <= low <= decode["number"] <= high <= 1.01


def test_first_words_are_of_the_first_and_the_second_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(__main__.Bench, "_ask", lambda _, _terminal, said: asked.append(said))
    monkeypatch.setattr(__main__.Bench, "_kept", lambda *_, answers: _answer(answers, len(asked)))
    monkeypatch.setattr(
        __main__, "first_word_seconds", lambda *given: len(asked) + (0.5 if given[-1] else 0.0)
    )
    assert __main__.main(["--what", "first-word", "--rounds", "2"]) == 0, "no goal is missed"
    assert asked == [__main__.QUESTION, __main__.SECOND_QUESTION] * 3
    shown = capsys.readouterr().out
    figures = json.loads(shown.splitlines()[-1])["figures"]
    values = {(one["name"].split(", ")[-1], number // 2): one["values"]
              for number, one in enumerate(figures)}  # fmt: skip
    assert values == {
        ("first answer", 0): [3000.0, 5000.0],
        ("reading the prompt", 0): [30.0, 50.0],
        ("second answer", 1): [4500.0, 6500.0],
        ("reading the prompt", 1): [40.0, 60.0],
    }, "the first process is none of the rounds"
    assert "| yes |" not in shown
    assert "| NO |" not in shown


def _answer(answers: int, asked: int) -> Turn:
    assert answers == (asked - 1) % 2 + 1
    numbers = {"prefill": {"wall_ns": asked * 10_000_000}}
    return Turn(1, None, "assistant", f"word {asked}", numbers=numbers)


def test_under_a_ceiling_the_chat_also_gets_as_many_slots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(__main__, "ask", lambda *words: _report(asked, words))
    monkeypatch.setattr(
        __main__.Bench, "_chat_rate", lambda bench, words: _chat_of(asked, bench, words)
    )
    __main__.main(["--what", "decode", "--rounds", "2", "--memory", "1000MiB", "-n", "7"])
    ceilings = [(words[0], int(words[words.index("--memory") + 1])) for words in asked[1:]]
    given = 1000 << 20
    turns = [("chat", given), ("run", given), ("chat", given + 160), ("run", given)]
    assert ceilings == [("run", given), *turns, *turns], "by turns, and no run twice"
    same, slots = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert (same["name"], slots["name"]) == (
        "decode, chat over run, the same ceiling", "decode, chat over run, as many slots"
    )  # fmt: skip
    assert (same["number"], slots["number"]) == pytest.approx((0.9, 0.99))
    assert (same["met"], slots["met"]) == (False, True)


def _report(asked: list[tuple[str, ...]], words: tuple[str, ...]) -> dict[str, Any]:
    asked.append(words)
    return {"decode": {"tokens_per_second": 100.0}}


def _chat_of(asked: list[tuple[str, ...]], bench: __main__.Bench, words: list[str]) -> float:
    asked.append(("chat", *words))
    bench._application_bytes = 160
    return 90.0 if int(words[1]) == 1000 << 20 else 99.0
