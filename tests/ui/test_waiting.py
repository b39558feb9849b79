"""Messages that wait above the prompt: sent one after the other, held, taken back, removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from flashllm.conversations.store import SessionStore
from flashllm.errors import ModelNotFound, ReadFailed
from flashllm.ui.app import ChatApp
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.chat.status import Phase
from flashllm.ui.prompt.waiting import WaitingMessages
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import (
    ClosingApp,
    answers,
    ask,
    make_app,
    ready,
    say,
    screen_text,
    status,
    texts,
    waiting,
)
from tests.support.fake_engine import FakeModel
from tests.support.screens import WAIT_SECONDS, until


def slow_app(outcome: Callable[[], Any], **options: Any) -> tuple[ClosingApp, threading.Event]:
    """A chat whose model is open, or is not, once the event is set."""
    gate = threading.Event()

    def open_engine(_request: object) -> Any:
        gate.wait(WAIT_SECONDS)
        return outcome()

    return ClosingApp(ChatScreen(open_engine, **options)), gate


async def answering(pilot: Pilot[None], *then: str) -> ChatApp:
    """An answer is on its way, and these messages wait for its end."""
    app = await ready(pilot)
    await say(pilot, "first")
    await until(pilot, lambda: answers(app)[-1:] == ["begun"])
    for number, text in enumerate(then, 1):
        await say(pilot, text)
        await until(pilot, lambda number=number: len(waiting(app)) == number)
    return app


def gated(*answer: str, context: int = 512) -> tuple[FakeModel, threading.Event]:
    gate = threading.Event()
    answers = ([text] for text in answer)
    return FakeModel(["begun", gate, "."], *answers, context=context), gate


async def test_several_are_sent_one_after_the_other() -> None:
    model, gate = gated("two", "three")
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot, "second", "//third")
        assert "waiting  second" in screen_text(app)
        assert "sent after this answer; Up takes the last one back" in screen_text(app)
        assert texts(app, Question) == ["first"]
        gate.set()
        await until(pilot, lambda: answers(app) == ["begun.", "two", "three"])
        await ready(pilot)
        assert texts(app, Question) == ["first", "second", "/third"]
        assert not app.query_one(WaitingMessages).has_class("-shown")


async def test_what_is_typed_next_is_not_sent_with_it() -> None:
    app, gate = slow_app(lambda: FakeModel(["one"]))
    async with app.run_test() as pilot:
        await pilot.pause()
        await say(pilot, "early")
        await until(pilot, lambda: waiting(app) == ["early"])
        assert "sent when the model is open" in screen_text(app)
        await pilot.press(*"half a th")
        gate.set()
        await until(pilot, lambda: answers(app) == ["one"])
        assert texts(app, Question) == ["early"]
        assert app.chat.prompt.text == "half a th"


async def test_up_takes_the_last_one_back_where_the_prompt_is_empty() -> None:
    model, gate = gated("two")
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot, "second", "third")
        await pilot.press("up")
        assert app.chat.prompt.text == "third"
        assert waiting(app) == ["second"]
        await pilot.press("!", "enter")
        await until(pilot, lambda: waiting(app) == ["second", "third!"])
        await pilot.press("ctrl+t")
        await until(pilot, lambda: waiting(app) == ["second"])
        assert "Up finds it again" in status(app)
        await pilot.press(*"abc", "up")  # what is being typed is not replaced by what waits
        assert waiting(app) == ["second"]
        gate.set()
        await until(pilot, lambda: texts(app, Question) == ["first", "second"])


async def test_a_stop_holds_what_waits_until_enter() -> None:
    model, _ = gated("two", "three")
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot, "second")
        await pilot.press("escape")
        await ready(pilot)
        await pilot.pause()
        assert texts(app, Question) == ["first"]
        assert "held     second" in screen_text(app)
        await say(pilot, "something else")  # is sent at once, and nothing that is held after it
        await until(pilot, lambda: answers(app) == ["begun", "two"])
        await ready(pilot)
        assert texts(app, Question) == ["first", "something else"]
        await pilot.press("enter")
        await until(pilot, lambda: answers(app) == ["begun", "two", "three"])
        assert texts(app, Question)[-1] == "second"


async def test_what_is_added_after_a_stop_goes_on_its_own() -> None:
    gate = threading.Event()
    model = FakeModel(["begun", threading.Event()], ["begun", gate], ["fine"])
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot, "held one")
        await pilot.press("escape")
        await ready(pilot)
        await say(pilot, "next")
        await until(pilot, lambda: len(answers(app)) == 2)
        await say(pilot, "after next")
        await until(pilot, lambda: waiting(app) == ["held one", "after next"])
        gate.set()
        await until(pilot, lambda: waiting(app) == ["held one"])
        assert texts(app, Question) == ["first", "next", "after next"]


async def test_escape_takes_back_and_what_was_typed_is_in_the_history() -> None:
    app, gate = slow_app(lambda: FakeModel(["one"]))
    async with app.run_test() as pilot:
        await pilot.pause()
        await say(pilot, "early")
        await until(pilot, lambda: waiting(app) == ["early"])
        await pilot.press(*"draft", "escape")
        assert app.chat.prompt.text == "early"
        assert waiting(app) == []
        await pilot.press("up")
        assert app.chat.prompt.text == "draft"
        gate.set()
        await ready(pilot)
        assert texts(app, Question) == []


@pytest.mark.parametrize("error", [ModelNotFound("gone"), MemoryError()])
async def test_where_no_model_opens_it_is_held(error: BaseException) -> None:
    outcomes: list[Any] = [error, FakeModel(["one"])]

    def outcome() -> Any:
        now = outcomes.pop(0)
        if isinstance(now, BaseException):
            raise now
        return now

    app, gate = slow_app(outcome)
    async with app.run_test() as pilot:
        await pilot.pause()
        await say(pilot, "early")
        await until(pilot, lambda: waiting(app) == ["early"])
        gate.set()
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        assert "held     early" in screen_text(app)
        await pilot.press("ctrl+r")
        await ready(pilot)
        await pilot.pause()
        assert answers(app) == []
        await pilot.press("enter")
        await until(pilot, lambda: answers(app) == ["one"])


async def test_an_answer_that_fails_holds_what_waits() -> None:
    gate = threading.Event()
    model = FakeModel(["begun", gate, ReadFailed("EIO")], ["two"])
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot, "second")
        gate.set()
        await until(pilot, lambda: any("EIO" in text for text in texts(app, Notice)))
        assert app.chat.waiting.held == 1
        assert texts(app, Question) == ["first"]


async def test_another_conversation_gets_nothing_that_was_written_for_this_one(
    tmp_path: Path,
) -> None:
    with SessionStore(tmp_path / "s.db") as store:
        store.create(name="other")
    app, gate = slow_app(lambda: FakeModel(["one"]), store=tmp_path / "s.db")
    async with app.run_test() as pilot:
        await pilot.pause()
        await say(pilot, "early")
        await until(pilot, lambda: waiting(app) == ["early"])
        await say(pilot, "/session other")
        await until(pilot, lambda: app.chat.session_id == 1)
        gate.set()
        await ready(pilot)
        await pilot.pause()
        assert app.chat.waiting.held == 1
        assert texts(app, Question) == []


async def test_an_edit_that_waits_is_an_edit_when_it_is_sent() -> None:
    async with make_app(FakeModel(["one"], ["two"])).run_test() as pilot:
        app = await ask(pilot, "first")
        gate = threading.Event()
        model = FakeModel(["two"])
        app.chat.engine._open_engine = lambda _: gate.wait(WAIT_SECONDS) and model  # type: ignore[assignment,return-value]
        app.chat.open_model(app.chat.choice)
        await pilot.press("tab", "e", "!", "enter")
        await until(pilot, lambda: waiting(app) == ["first!"])
        assert app.chat.prompt.editing is None
        await pilot.press("up")
        assert app.chat.prompt.editing == 1
        await pilot.press("enter")
        await until(pilot, lambda: waiting(app) == ["first!"])
        gate.set()
        await until(pilot, lambda: answers(app) == ["two"])
        assert texts(app, Question) == ["first!\n‹ 2/2 ›"]


async def test_a_click_takes_back_and_its_end_removes() -> None:
    model, _ = gated()
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot, "second", "third")
        await pilot.click(WaitingMessages, offset=(12, 0))
        await until(pilot, lambda: app.chat.prompt.text == "second")
        assert waiting(app) == ["third"]
        await pilot.click(WaitingMessages, offset=(12, 0))
        await until(pilot, lambda: "holds something else" in status(app))
        assert waiting(app) == ["third"]
        await pilot.click(WaitingMessages, offset=(75, 0))
        await until(pilot, lambda: waiting(app) == [])
        await pilot.press("escape")
        await ready(pilot)


async def test_commands_for_it() -> None:
    model, _ = gated("two")
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot, "second", "third")
        await say(pilot, "/queue drop")
        await until(pilot, lambda: waiting(app) == ["second"])
        await say(pilot, "/queue send")
        await until(pilot, lambda: "there is nothing to send now" in texts(app, Notice)[-1])
        app.chat.prompt.put_text("")
        await say(pilot, "/queue edit")
        await until(pilot, lambda: app.chat.prompt.text == "second")
        assert waiting(app) == []
        await pilot.press("escape")
        await ready(pilot)


async def test_a_long_paste_that_waits_stays_a_few_words() -> None:
    model, gate = gated("two", context=4096)
    async with make_app(model).run_test() as pilot:
        app = await answering(pilot)
        app.chat.prompt.post_message(events.Paste("word " * 3000))
        await until(pilot, lambda: "characters]" in app.chat.prompt.text)
        await pilot.press("enter")
        await until(pilot, lambda: len(waiting(app)) == 1)
        assert "waiting  [text 1: 15,000 characters]" in screen_text(app)
        await pilot.press("up")
        assert app.chat.prompt.text == "[text 1: 15,000 characters]"
        await pilot.press("enter")
        gate.set()
        await until(pilot, lambda: len(answers(app)) == 2)
        await ready(pilot)
        assert model.tokenizer is not None
        assert model.tokenizer.conversations[-1][-1]["content"] == ("word " * 3000).strip()


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
async def test_it_leaves_room_for_the_rest(size: tuple[int, int]) -> None:
    model, _ = gated()
    async with make_app(model).run_test(size=size) as pilot:
        app = await answering(pilot, *(f"number {n} " + "x" * 99 for n in range(5)))
        assert app.query_one(WaitingMessages).size.height == (1 if size[1] < 18 else 4)
        assert "number 4" in screen_text(app)
        assert app.chat.prompt.region.bottom < size[1]
        await pilot.press("escape")
        await ready(pilot)
