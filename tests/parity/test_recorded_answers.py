"""The demo answers as it was recorded to: no step of the work may change an answer unnoticed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.parity.answers.make import HOW, PRECISIONS, RECORD, computed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return computed()


def test_the_questions_are_the_same(recorded: dict[str, Any], now: dict[str, Any]) -> None:
    assert now["questions"] == recorded["questions"]
    assert len(set(now["questions"])) == len(now["questions"])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_answers_are_the_same(
    recorded: dict[str, Any], now: dict[str, Any], precision: str, how: str
) -> None:
    name = f"{precision} {how}"
    assert now[name] == recorded[name]
