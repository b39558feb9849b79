"""Which conversation the chat goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm.cli.main import parse
from flashllm.cli.shared.conversation_choice import chosen_session, model_of
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.errors import SessionNotFound, UsageError


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionStore:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    return SessionStore()


def chosen(*arguments: str) -> int | None:
    session = chosen_session(parse(["chat", *arguments]))
    return session.id if session else None


def test_a_new_one_unless_one_is_asked_for(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen() is None
    assert chosen("--continue") is None
    first = store.create(name="Rivers")
    second = store.create(name="Seas")
    assert chosen() is None
    assert chosen("--continue") is None  # neither has a message
    for kept in (first, second):
        store.save_turn(kept, Turn(1, None, "user", "x"))
    store.create(name="empty")
    assert chosen("--continue") == second
    assert chosen("--session", "rivers") == first
    assert chosen("--session", str(second)) == second
    monkeypatch.setenv("FLASHLLM_CONTINUE", "1")
    assert chosen() == second
    assert chosen("--session", "Rivers") == first
    with pytest.raises(SessionNotFound, match="Lakes"):
        chosen("--session", "Lakes")
    with pytest.raises(UsageError, match="two conversations"):
        chosen("--continue", "--session", "1")
    with pytest.raises(UsageError, match="--no-save"):
        chosen("--continue", "--no-save")
    assert chosen("--no-save") is None  # a flag beats a variable


def test_it_goes_on_with_its_model_while_that_is_there(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, gone = str(tmp_path), str(tmp_path / "gone")
    for model, expected in ((there, there), (gone, "/usual"), ("", "/usual")):
        store.save_turn(store.create(model=model), Turn(1, None, "user", "x"))
        monkeypatch.setenv("FLASHLLM_MODEL", "/usual")
        arguments = parse(["chat", "--continue"])
        assert model_of(arguments, chosen_session(arguments)) == expected
        arguments = parse(["chat", "/asked", "--continue"])
        assert model_of(arguments, chosen_session(arguments)) == "/asked"
    assert model_of(parse(["chat"]), None) == "/usual"
