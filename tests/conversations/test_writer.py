"""Saving never holds up who calls; what fails is told, kept and tried again."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flashllm.conversations.database import set_aside
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Conversation, Turn
from flashllm.conversations.writer import NewSession, SessionWriter
from flashllm.errors import FlashllmError, SessionNotFound

PATIENCE_SECONDS = 30.0


class Told:
    """What the writer says, in order."""

    def __init__(self) -> None:
        self.errors: list[FlashllmError] = []
        self.recovered = threading.Event()
        self.failed = threading.Event()

    def error(self, error: FlashllmError) -> None:
        self.errors.append(error)
        self.failed.set()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def writer_of(path: Path, told: Told) -> SessionWriter:
    return SessionWriter(
        path, told.error, told.recovered.set, retry_seconds=0.02, busy_seconds=0.02
    )


def test_all_is_saved_in_order(path: Path, told: Told) -> None:
    writer = writer_of(path, told)
    conversation = Conversation()
    session = writer.create(model="/models/a", settings={"temp": 1})
    question = conversation.ask("What?")
    answer = conversation.begin_answer()
    writer.save_turn(session, question)
    for word in ("This", " and", " that"):
        answer.text += word
        writer.save_turn(session, answer)
    writer.remove_turn(session, conversation.edit(question.id, "gone again").id)
    conversation.remove(3)
    conversation.choose(question.id)
    writer.save_leaf(session, conversation.leaf)
    writer.save_head(session, name="Named", system="Be brief.")
    assert writer.close(PATIENCE_SECONDS)
    assert not told.errors
    assert session.id is not None
    with SessionStore(path) as store:
        kept = store.load(session.id)
    conversation.system = "Be brief."
    assert kept.conversation == conversation
    assert (kept.meta.name, kept.meta.model, kept.settings) == ("Named", "/models/a", {"temp": 1})


def test_a_turn_is_saved_as_it_was_when_it_was_given(path: Path, told: Told) -> None:
    writer = writer_of(path, told)
    session = writer.create()
    turn = Turn(1, None, "user", "then")
    writer.save_turn(session, turn)
    turn.text = "now"
    assert writer.close(PATIENCE_SECONDS)
    assert session.id is not None
    with SessionStore(path) as store:
        assert store.load(session.id).conversation.turns[1].text == "then"


def test_an_id_given_again_after_removal_is_another_turn(path: Path, told: Told) -> None:
    with SessionStore(path) as store:
        number = store.create()
        lock = locked(path)
        writer = writer_of(path, told)
        writer.save_turn(number, Turn(1, None, "user", "old"))
        writer.remove_turn(number, 1)
        writer.save_turn(number, Turn(1, None, "user", "new"))
        lock()
        assert writer.close(PATIENCE_SECONDS)
        assert store.load(number).conversation.turns[1].text == "new"


def locked(path: Path) -> Callable[[], object]:
    """Locks the database; returns what ends that."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other.close


def test_a_lock_is_told_once_and_nothing_is_lost(path: Path, told: Told) -> None:
    with SessionStore(path) as store:
        number = store.create()
        writer = writer_of(path, told)
        unlock = locked(path)
        turn = Turn(1, None, "user", "0")
        for index in range(200):
            turn.text = str(index)
            writer.save_turn(number, turn)
        assert told.failed.wait(PATIENCE_SECONDS)
        assert not writer.flush(0.2)
        assert len(writer._pending) <= 2  # what waits does not grow
        unlock()
        assert told.recovered.wait(PATIENCE_SECONDS)
        assert writer.flush(PATIENCE_SECONDS)
        assert store.load(number).conversation.turns[1].text == "199"
        writer.close()
    assert [type(error).__name__ for error in told.errors] == ["SessionError"]
    assert "another program is writing" in str(told.errors[0])


def test_no_call_waits_for_the_disk(path: Path, told: Told) -> None:
    SessionStore(path).close()
    unlock = locked(path)
    writer = SessionWriter(path, told.error, busy_seconds=PATIENCE_SECONDS)
    begin = time.monotonic()
    session = writer.create()
    for index in range(1, 50):
        writer.save_turn(session, Turn(index, None, "user", "x" * 1000))
    assert time.monotonic() - begin < PATIENCE_SECONDS / 2
    unlock()
    assert writer.close(PATIENCE_SECONDS)
    assert session.id is not None


def test_closing_gives_up_what_cannot_be_saved_and_says_so(path: Path, told: Told) -> None:
    SessionStore(path).close()
    unlock = locked(path)
    writer = writer_of(path, told)
    writer.create()
    assert told.failed.wait(PATIENCE_SECONDS)
    assert not writer.close(PATIENCE_SECONDS)
    unlock()


def test_a_database_that_comes_back_gets_everything(path: Path, told: Told) -> None:
    path.write_bytes(b"not SQLite, " * 100)
    writer = writer_of(path, told)
    session = writer.create(name="first")
    writer.save_turn(session, Turn(1, None, "user", "kept meanwhile"))
    assert told.failed.wait(PATIENCE_SECONDS)
    path.rename(path.with_suffix(".aside"))
    assert writer.close(PATIENCE_SECONDS)
    assert session.id is not None
    with SessionStore(path) as store:
        assert store.load(session.id).conversation.turns[1].text == "kept meanwhile"


def test_what_was_deleted_elsewhere_is_given_up_and_the_rest_saved(path: Path, told: Told) -> None:
    with SessionStore(path) as store:
        gone, kept = store.create(), store.create()
        store.delete(gone)
        writer = writer_of(path, told)
        writer.save_turn(gone, Turn(1, None, "user", "x"))
        writer.save_turn(kept, Turn(1, None, "user", "y"))
        assert writer.close(PATIENCE_SECONDS)
        assert store.load(kept).conversation.turns[1].text == "y"
    assert [type(error) for error in told.errors] == [SessionNotFound]


def test_what_is_deleted_elsewhere_meanwhile_is_known_to_be_lost(path: Path, told: Told) -> None:
    with SessionStore(path) as store:
        gone, kept = store.create(), store.create()
        writer = writer_of(path, told)
        for session in (gone, kept):
            writer.save_turn(session, Turn(1, None, "user", "x"))
        assert writer.flush(PATIENCE_SECONDS)
        assert not writer.lost
        store.delete(gone)
        writer.save_head(gone, name="x")
        writer.save_turn(kept, Turn(9, 8, "assistant", "to a question that is gone"))
        assert writer.close(PATIENCE_SECONDS)
    assert writer.lost == {gone}


def test_what_was_given_up_is_not_said_to_be_saved(path: Path, told: Told) -> None:
    with SessionStore(path) as store:
        number = store.create()
        writer = writer_of(path, told)
        for turn_id in (2, 4):  # what they answer was deleted elsewhere
            writer.save_turn(number, Turn(turn_id, 1, "assistant", "x"))
            writer.save_leaf(number, turn_id)
        assert writer.close(PATIENCE_SECONDS)
    assert [type(error) for error in told.errors] == [SessionNotFound]
    assert not told.recovered.is_set()


def test_a_turn_stays_behind_what_it_answers(path: Path, told: Told) -> None:
    """Its question got a free id, and what took the ids between was deleted meanwhile."""
    with SessionStore(path) as store:
        number = store.create()
        ours, theirs = Conversation(), Conversation()
        for turn in (theirs.ask("their words"), theirs.begin_answer(), theirs.ask("more")):
            store.save_turn(number, turn)
        writer = writer_of(path, told)
        question, answer = ours.ask("our words"), ours.begin_answer()
        writer.save_turn(number, question)
        assert writer.flush(PATIENCE_SECONDS)
        store.remove_turn(number, 1)
        for text in ("our", "our answer"):
            answer.text = text
            writer.save_turn(number, answer)
            assert writer.flush(PATIENCE_SECONDS)
        writer.close()
        path_ = store.load(number).conversation.path()
        assert [turn.text for turn in path_] == ["our words", "our answer"]
    assert not told.errors


def test_a_turn_that_cannot_be_written_at_all_does_not_hold_up_others(
    path: Path, told: Told
) -> None:
    with SessionStore(path) as store:
        number = store.create()
        writer = writer_of(path, told)
        writer.save_turn(number, Turn(1, None, "user", "x", ids=(-(2**40),)))
        writer.save_turn(number, Turn(2, None, "user", "y"))
        assert writer.close(PATIENCE_SECONDS)
        assert list(store.load(number).conversation.turns) == [2]
    assert "cannot be saved" in str(told.errors[0])


def test_the_last_words_are_written_though_nothing_follows(path: Path, told: Told) -> None:
    """A slow engine's next token may take seconds: what it said must not wait for it."""
    writer = writer_of(path, told)
    session = writer.create()
    answer = Turn(1, None, "user", "")
    for word in ("so", " many", " words"):
        answer.text += word
        writer.save_turn(session, answer)
        time.sleep(0.01)
    deadline = time.monotonic() + PATIENCE_SECONDS
    with SessionStore(path) as store:
        while time.monotonic() < deadline:
            found = session.id and store.load(session.id).conversation.turns.get(1)
            if found and found.text == answer.text:
                break
            time.sleep(0.01)
        else:
            pytest.fail("the last words were not written")
    writer.close()


def test_a_growing_answer_is_written_now_and_then(
    path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    save = SessionStore.save_turn

    def counted(store: SessionStore, session_id: int, turn: Turn) -> int:
        written.append(turn.text)
        return save(store, session_id, turn)

    monkeypatch.setattr(SessionStore, "save_turn", counted)
    monkeypatch.setattr("flashllm.conversations.writer.PAUSE_SECONDS", PATIENCE_SECONDS)
    with SessionStore(path) as store:
        number = store.create()
        writer = writer_of(path, told)
        answer = Turn(1, None, "user", "")
        writer.save_turn(number, answer)
        assert writer.flush(PATIENCE_SECONDS)
        for index in range(1000):
            answer.text = str(index)
            writer.save_turn(number, answer)
        assert writer.flush(PATIENCE_SECONDS)  # does not wait for the pause to end
        assert written == ["", "999"]
        writer.close()


def test_two_programs_that_go_on_with_one_conversation_are_two_branches(
    path: Path, told: Told
) -> None:
    with SessionStore(path) as store:
        number = store.create()
        begun = Conversation()
        store.save_turn(number, begun.ask("a question"))
        ours, theirs = (store.load(number).conversation for _ in "ab")
        writer = writer_of(path, told)
        store.save_turn(number, theirs.ask("their words"))
        store.save_turn(number, theirs.begin_answer())
        question, answer = ours.ask("our words"), ours.begin_answer()
        for turn in (question, answer):
            writer.save_turn(number, turn)
        answer.text = "our answer"
        writer.save_turn(number, answer)
        last = ours.ask("more")
        writer.save_turn(number, last)
        assert writer.flush(PATIENCE_SECONDS)
        kept = store.load(number).conversation
        texts = [turn.text for turn in kept.path()]
        assert texts == ["a question", "our words", "our answer", "more"]
        kept.choose(2)
        assert [turn.text for turn in kept.path()] == ["a question", "their words", ""]
        writer.remove_turn(number, last.id)
        writer.save_leaf(number, question.id)
        assert writer.flush(PATIENCE_SECONDS)
        kept = store.load(number).conversation
        assert [turn.text for turn in kept.path()] == ["a question", "our words"]
        assert len(kept.turns) == 5

        writer.reopened(
            number, store.summary(number).created
        )  # their ids are now those of the store
        kept.turns[3].text = "their answer"
        writer.save_turn(number, kept.turns[3])
        assert writer.close(PATIENCE_SECONDS)
        assert store.load(number).conversation.turns[3].text == "their answer"
        assert store.load(number).conversation.turns[5].text == "our answer"
    assert not told.errors


def put_another_in_place(path: Path) -> int:
    """Sets the database aside and begins one whose first conversation is somebody else's."""
    set_aside(path)
    with SessionStore(path) as store:
        number = store.create(name="another")
        store.save_turn(number, Turn(1, None, "user", "their words"))
    return number


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_conversation_of_the_same_id_in_another_database_is_left_alone(
    path: Path, told: Told, is_loaded: bool
) -> None:
    with SessionStore(path) as store:
        session: int | NewSession = NewSession()
        writer = writer_of(path, told)
        if is_loaded:
            session = store.create()
            writer.reopened(session, store.summary(session).created)
        else:
            session = writer.create()
    question = Turn(1, None, "user", "our words")
    writer.save_turn(session, question)
    assert writer.flush(PATIENCE_SECONDS)
    assert put_another_in_place(path) == (session if isinstance(session, int) else session.id)
    writer.save_turn(session, question)
    writer.save_turn(session, Turn(2, 1, "assistant", "our answer"))
    writer.save_leaf(session, None)
    writer.save_head(session, name="ours")
    writer.remove_turn(session, 1)
    new = writer.create(name="new")  # goes where conversations are looked for
    assert writer.close(PATIENCE_SECONDS)
    with SessionStore(path) as store:
        kept = store.load(1)
        assert (kept.meta.name, kept.conversation.leaf) == ("another", 1)
        assert [turn.text for turn in kept.conversation.path()] == ["their words"]
        assert new.id is not None
        assert store.summary(new.id).name == "new"
    assert [type(error) for error in told.errors] == [SessionNotFound]
    assert "another one, which is left alone" in str(told.errors[0])


def test_what_is_loaded_from_another_database_is_written_there(path: Path, told: Told) -> None:
    writer = writer_of(path, told)
    session = writer.create()
    assert writer.flush(PATIENCE_SECONDS)
    number = put_another_in_place(path)
    assert number == session.id
    with SessionStore(path) as store:
        writer.reopened(number, store.summary(number).created)
        writer.save_turn(number, Turn(2, 1, "assistant", "an answer to them"))
        assert writer.close(PATIENCE_SECONDS)
        texts = [turn.text for turn in store.load(number).conversation.path()]
    assert texts == ["their words", "an answer to them"]
    assert not told.errors
