"""What the chat keeps of a conversation, and shows again."""

from __future__ import annotations

import threading
from pathlib import Path

from flashllm.conversations.database import set_aside
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Conversation, Turn
from flashllm.ui.chat.status import Phase
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import answers, ask, make_app, notes, ready, say, status, texts
from tests.support.fake_engine import FakeModel, Held
from tests.support.screens import until


def kept(path: Path, session_id: int = 1) -> list[tuple[str, str, str | None]]:
    with SessionStore(path) as store:
        turns = store.load(session_id).conversation.path()
    return [(turn.role, turn.text, turn.finish_reason) for turn in turns]


async def test_questions_and_answers_are_kept_and_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with make_app(FakeModel(["one"]), store=path, system="Be brief.").run_test() as pilot:
        app = await ask(pilot, "first")
        assert app.chat.saving.flush(10)
        assert app.chat.session_id == 1
    expected = [("user", "first", None), ("assistant", "one", "stop")]
    assert kept(path) == expected
    model = FakeModel(["two"])
    async with make_app(model, store=path, session=1).run_test() as pilot:
        app = await ready(pilot)
        assert texts(app, Question) == ["first"]
        assert answers(app) == ["one"]
        assert app.chat.conversation.system == "Be brief."
        await ask(pilot, "second")
        assert app.chat.saving.flush(10)
    assert kept(path) == [*expected, ("user", "second", None), ("assistant", "two", "stop")]
    assert model.tokenizer is not None
    assert [m["content"] for m in model.tokenizer.conversations[0]] == [
        "Be brief.", "first", "one", "second",
    ]  # fmt: skip


async def test_an_answer_that_had_not_begun_says_how_to_ask_again(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    conversation = Conversation()
    turns = [conversation.ask("first"), conversation.begin_answer()]
    with SessionStore(path) as store:  # as it would be found after kill -9
        session_id = store.create()
        for turn in turns:
            store.save_turn(session_id, turn)
        store.save_leaf(session_id, conversation.leaf)
    async with make_app(FakeModel(["one"]), store=path, session=session_id).run_test() as pilot:
        app = await ready(pilot)
        assert notes(app) == ["nothing was answered; r here, or /regenerate, answers it"]
        await pilot.press("tab", "r")
        await until(pilot, lambda: answers(app) == ["one"])


async def test_an_answer_is_kept_while_it_is_written_and_can_go_on_afterwards(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sessions.db"
    model = FakeModel(["begun", threading.Event()])
    async with make_app(model, store=path).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: answers(app) == ["begun"])
        # As it would be found after kill -9.
        await until(pilot, lambda: app.chat.session_id is not None and len(kept(path)) == 2)
        await until(pilot, lambda: kept(path)[-1] == ("assistant", "begun", None))
    async with make_app(FakeModel([" and done"]), store=path, session=1).run_test() as pilot:
        app = await ready(pilot)
        assert notes(app) == ["stopped; Enter here, or /continue, goes on"]
        await pilot.press("tab", "enter")
        await until(pilot, lambda: answers(app) == ["begun and done"])
        await ready(pilot)
        assert app.chat.saving.flush(10)
    assert kept(path)[-1] == ("assistant", "begun and done", "stop")


async def test_what_was_held_back_for_a_stop_string_is_part_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    model = FakeModel(["1 ", Held("<")], ["2 ", "3 ", Held("<")])
    async with make_app(model, store=path, max_tokens=2).run_test() as pilot:
        app = await ask(pilot, "go")
        assert answers(app) == ["1 <"]
        app.chat.conversation.turns[2].finish_reason = "length"
        await pilot.press("tab", "enter")
        await until(pilot, lambda: answers(app) == ["1 <2 3 <"])
        await ready(pilot)
        assert app.chat.saving.flush(10)
    assert kept(path)[-1] == ("assistant", "1 <2 3 <", "stop")


async def test_what_is_taken_back_or_deleted_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    model = FakeModel(["one"], [threading.Event()])
    async with make_app(model, store=path).run_test() as pilot:
        app = await ask(pilot, "first")
        await say(pilot, "second")
        await until(pilot, lambda: app.chat.activity.phase is Phase.READING)
        await pilot.press("escape")
        await ready(pilot)
        assert app.chat.saving.flush(10)
        assert len(kept(path)) == 2
        app.chat.prompt.put_text("")
        await pilot.press("tab", "d", "y")
        await until(pilot, lambda: answers(app) == [])
        assert app.chat.saving.flush(10)
    assert kept(path) == [("user", "first", None)]


async def test_no_conversation_without_messages_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    model = FakeModel(["one"], ["two"], context=50)
    async with make_app(model, store=path).run_test() as pilot:
        app = await ask(pilot, "word " * 60)
        assert any("this message has 61 tokens" in text for text in texts(app, Notice))
        assert app.chat.saving.flush(10)
        assert app.chat.session_id is None
        with SessionStore(path) as store:
            assert store.list() == []
        app.chat.prompt.put_text("")
        await ask(pilot, "first")
        await say(pilot, "/rename Seas")
        await until(pilot, lambda: "is called" in status(app))
        await pilot.press("tab", "up", "d", "y")
        await until(pilot, lambda: app.chat.conversation.turns == {})
        assert app.chat.saving.flush(10)
        with SessionStore(path) as store:
            assert store.list() == []
        app.chat.action_focus_prompt()
        await ask(pilot, "second")  # the conversation has its name again
        assert app.chat.saving.flush(10)
        with SessionStore(path) as store:
            (only,) = store.list()
        assert (only.name, only.turns) == ("Seas", 2)


async def test_what_another_chat_added_stays_where_all_of_ones_own_is_deleted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sessions.db"
    async with make_app(FakeModel(["one"]), store=path).run_test() as pilot:
        app = await ask(pilot, "first")
        assert app.chat.saving.flush(10)
        with SessionStore(path) as store:
            store.save_turn(1, Turn(7, None, "user", "from elsewhere", created=1.0))
        await pilot.press("tab", "up", "d", "y")
        await until(pilot, lambda: app.chat.conversation.turns == {})
        assert app.chat.saving.flush(10)
    assert [turn[1] for turn in kept(path)] == ["from elsewhere"]


async def test_a_new_conversation_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with make_app(FakeModel(["one"], ["two"]), store=path).run_test() as pilot:
        await ask(pilot, "first")
        await pilot.press("ctrl+n")
        app = await ask(pilot, "second")
        assert app.chat.saving.flush(10)
        assert app.chat.session_id == 2
    assert [turn[1] for turn in kept(path, 1)] == ["first", "one"]
    assert [turn[1] for turn in kept(path, 2)] == ["second", "two"]


async def test_a_database_that_took_the_place_of_the_chats_own_is_left_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sessions.db"
    async with make_app(FakeModel(["one"], ["two"]), store=path).run_test() as pilot:
        app = await ask(pilot, "first")
        assert app.chat.saving.flush(10)
        set_aside(path)
        with SessionStore(path) as store:
            assert store.create(name="another") == app.chat.session_id
        await ask(pilot, "second")
        assert app.chat.saving.flush(10)
        await until(
            pilot, lambda: any("which is left alone" in text for text in texts(app, Notice))
        )
        assert answers(app) == ["one", "two"]
        assert app.chat.session_id is None
        await pilot.press("ctrl+n")
        await ask(pilot, "third")
        assert app.chat.saving.flush(10)
        assert app.chat.session_id == 2
    assert kept(path, 1) == []
    assert [turn[1] for turn in kept(path, 2)] == ["third", "two"]


async def test_the_chat_goes_on_where_nothing_can_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"this is no database" * 1000)
    async with make_app(FakeModel(["one"], ["two"]), store=path).run_test() as pilot:
        app = await ask(pilot, "first")
        await until(pilot, lambda: any("not being saved" in text for text in texts(app, Notice)))
        await ask(pilot, "second")
        assert answers(app) == ["one", "two"]
    assert path.read_bytes() == b"this is no database" * 1000


async def test_a_conversation_that_is_not_there_is_said(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with make_app(FakeModel(["one"]), store=path, session=7).run_test() as pilot:
        app = await ready(pilot)
        assert any("there is no conversation 7" in text for text in texts(app, Notice))
        await ask(pilot, "first")


async def test_a_conversation_that_cannot_be_opened_leaves_the_one_that_is_shown(
    tmp_path: Path,
) -> None:
    async with make_app(FakeModel(["one"]), store=tmp_path / "sessions.db").run_test() as pilot:
        app = await ask(pilot, "first")
        await pilot.press("tab", "e")
        await app.chat.open_session(7)
        assert any("there is no conversation 7" in text for text in texts(app, Notice))
        assert app.chat.prompt.editing == 1
        assert len(app.chat.panels.numbers(2)) == 1
