"""The tokens of answers, of which all but the last answer's are packed."""

from __future__ import annotations

import pytest

from flashllm.ui.panels import answer_tokens
from flashllm.ui.panels.answer_tokens import AnswerTokens
from tests.support.fake_engine import FakeToken, fake_cost


def tokens(first: int, count: int) -> list[FakeToken]:
    return [
        FakeToken(id_, f" {id_}", fake_cost(wall_ns=id_ + 100))
        for id_ in range(first, first + count)
    ]


def test_each_answer_has_its_tokens() -> None:
    kept = AnswerTokens()
    kept.add(2, tokens(0, 3))
    kept.add(4, tokens(10, 2))
    kept.add(6, tokens(20, 1))
    assert kept.turns == [2, 4, 6]
    assert list(kept.of(2)) == tokens(0, 3)
    assert list(kept.of(4)) == tokens(10, 2)
    assert list(kept.of(6)) == tokens(20, 1)
    assert list(kept.of(5)) == []


def test_an_answer_that_goes_on_is_the_last_one() -> None:
    kept = AnswerTokens()
    kept.add(2, tokens(0, 3))
    kept.add(4, tokens(10, 2))
    kept.add(2, tokens(3, 2))
    assert kept.turns == [4, 2]
    assert list(kept.of(2)) == tokens(0, 5)
    kept.clear()
    assert kept.turns == []
    assert list(kept.of(2)) == []


def test_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_tokens, "TOKENS_KEPT", 10)
    kept = AnswerTokens()
    for turn in range(2, 12, 2):
        kept.add(turn, tokens(turn, 4))
    assert kept.turns == [8, 10]
    kept.add(12, tokens(0, 50))
    assert kept.turns == [12], "the last answer stays, however long"


def test_packed_they_take_a_tenth() -> None:
    kept = AnswerTokens()
    kept.add(2, tokens(0, 200))
    kept.add(4, tokens(0, 1))
    assert len(kept._packed[2][1]) < 200 * 200
