"""What one can do with messages: choose, edit, answer again, continue, delete, copy."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from flashllm.engine.sampling import Sampling
from flashllm.errors import ModelNotFound, ReadFailed
from flashllm.ui.app import ChatApp
from flashllm.ui.chat.status import Phase
from flashllm.ui.prompt.prompt import Prompt
from flashllm.ui.screens.confirm import ConfirmScreen
from flashllm.ui.transcript.answer import Answer
from flashllm.ui.transcript.transcript import MOUNTED_AT_ONCE, Transcript
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import (
    answers,
    ask,
    make_app,
    notes,
    ready,
    say,
    screen_text,
    status,
    texts,
    waiting,
)
from tests.support.fake_engine import FakeModel
from tests.support.screens import WAIT_SECONDS, until

DRAWING = Sampling(0.7, seed=3)


def sent(model: FakeModel) -> list[list[str]]:
    """Contents of the messages of each conversation that was sent."""
    assert model.tokenizer is not None
    return [[message["content"] for message in one] for one in model.tokenizer.conversations]


def gated(gate: threading.Event, *texts_: str) -> FakeModel:
    """Each answer waits for the gate before its last word."""
    return FakeModel(*([text, gate, "."] for text in texts_))


async def stopped(pilot: Pilot[None], shown: str) -> ChatApp:
    """Asks, and stops the answer when that much of it is there."""
    app = await ready(pilot)
    await say(pilot, "go")
    await until(pilot, lambda: answers(app) == [shown])
    await pilot.press("escape")
    return await ready(pilot)


def open_later(app: ChatApp, outcome: FakeModel | Exception) -> threading.Event:
    """The model is opened anew; it is there, or is not, when the event is set."""
    gate = threading.Event()

    def open_engine(_choice: object) -> Any:
        gate.wait(WAIT_SECONDS)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    app.chat.engine._open_engine = open_engine
    app.chat.open_model(app.chat.choice)
    return gate


async def talked(pilot: Pilot[None], questions: int, answer: str) -> Transcript:
    """A conversation as it was kept, shown."""
    app = await ready(pilot)
    for number in range(questions):
        app.chat.conversation.ask(f"question {number}")
        turn = app.chat.conversation.begin_answer()
        turn.text, turn.finish_reason = answer.format(number), "stop"
    await app.chat.shown.refresh()
    return app.query_one(Transcript)


async def test_answering_again_keeps_the_first_answer_as_a_branch() -> None:
    gate = threading.Event()
    gate.set()
    model = gated(gate, "one", "two")
    async with make_app(model, sampling=DRAWING).run_test() as pilot:
        app = await ask(pilot, "a")
        gate.clear()
        await pilot.press("tab", "r")
        await until(pilot, lambda: answers(app) == ["two"])
        gate.set()
        await ready(pilot)
        assert answers(app) == ["two."]
        drawn = ["‹ 2/2 ›  drawn at temperature 0.7, seed 4"]
        await until(pilot, lambda: notes(app) == drawn)
        assert sent(model) == [["a"], ["a"]]
        assert [one["sampling"].seed for one in model.requests] == [3, 4]
        await pilot.press("tab", "tab", "left")
        assert answers(app) == ["one."]
        assert notes(app) == ["‹ 1/2 ›"]
        await pilot.press("left")
        assert answers(app) == ["two."]
        await pilot.press("right")
        assert answers(app) == ["one."]
        assert [turn.text for turn in app.chat.conversation.path()] == ["a", "one."]


async def test_at_temperature_0_another_answer_is_offered_to_be_drawn() -> None:
    model = FakeModel(["one"], ["two"], ["three"])
    async with make_app(model, sampling=Sampling(seed=3)).run_test() as pilot:
        app = await ask(pilot, "a")
        await pilot.press("tab", "r")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "The temperature is 0, so the same text would come again." in screen_text(app)
        await pilot.press("n")
        assert len(model.requests) == 1
        app.chat.action_focus_prompt()
        await say(pilot, "/regenerate")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: answers(app) == ["two"])
        await ready(pilot)
        assert model.requests[-1]["sampling"] == Sampling(0.7, seed=4)
        assert notes(app) == ["‹ 2/2 ›  drawn at temperature 0.7, seed 4"]
        assert app.chat.answer_settings.sampling == Sampling(seed=3)


async def test_what_would_not_be_the_same_is_answered_at_once() -> None:
    model = FakeModel(["one", threading.Event()], ["two"], ["three"], ["four"])
    async with make_app(model).run_test() as pilot:
        app = await stopped(pilot, "one")  # it would go further now
        await pilot.press("tab", "r")
        await until(pilot, lambda: answers(app) == ["two"])
        await ready(pilot)
        app.chat.action_focus_prompt()
        await say(pilot, "/system Rhyme.")
        await until(pilot, lambda: app.chat.conversation.system == "Rhyme.")
        await pilot.press("tab", "r")
        await until(pilot, lambda: answers(app) == ["three"])
        await ready(pilot)
        await pilot.press("left", "r")  # of an older version it is not known how it was made
        await until(pilot, lambda: answers(app) == ["four"])


async def test_the_same_text_that_came_again_is_said() -> None:
    async with make_app(FakeModel(["one"])).run_test() as pilot:
        app = await ask(pilot, "a")
        app.chat.answering._answered = None  # as if it had been opened from the database
        await pilot.press("tab", "r")
        await until(pilot, lambda: "the same text came again" in status(app))
        assert notes(app) == ["‹ 2/2 ›"]


async def test_an_answer_that_was_drawn_goes_on_as_it_was_drawn() -> None:
    model = FakeModel(["one"], ["two", threading.Event()], [" three"])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "a")
        await app.chat.answering.regenerate(draw=True)
        await until(pilot, lambda: answers(app) == ["two"])
        await pilot.press("escape")
        await ready(pilot)
        await say(pilot, "/continue")
        await until(pilot, lambda: answers(app) == ["two three"])
        assert [one["sampling"] for one in model.requests] == [
            Sampling(), Sampling(0.7, seed=1), Sampling(0.7, seed=1),
        ]  # fmt: skip


async def test_editing_a_question_makes_a_branch_and_what_followed_is_kept() -> None:
    model = FakeModel(["one"], ["two"], ["three"])
    async with make_app(model).run_test() as pilot:
        await ask(pilot, "first")
        app = await ask(pilot, "second")
        app.chat.prompt.put_text("a draft")
        await pilot.press("tab", "up", "up", "up", "e")
        assert app.chat.prompt.text == "first"
        assert app.focused is app.chat.prompt
        await pilot.press("escape")
        assert app.chat.prompt.text == "a draft"
        app.chat.prompt.put_text("")
        await pilot.press("tab", "up", "up", "up", "e", "s", "t", "enter")
        await until(pilot, lambda: answers(app) == ["three"])
        await ready(pilot)
        assert texts(app, Question) == ["firstst\n‹ 2/2 ›"]
        assert sent(model)[-1] == ["firstst"]
        await pilot.press("tab", "up", "left")
        assert [view.turn_id for view in app.query_one(Transcript).views()] == [1, 2, 3, 4]
        assert answers(app) == ["one", "two"]
        assert app.chat.prompt.border_title is None


async def test_editing_an_answer_edits_its_question() -> None:
    async with make_app(FakeModel(["one"])).run_test() as pilot:
        app = await ask(pilot, "first")
        await pilot.press("tab", "e")
        assert app.chat.prompt.text == "first"


async def test_an_edit_that_fails_shows_the_old_branch_again() -> None:
    model = FakeModel(["one"], [ReadFailed("offset 1: gone")])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "first")
        await pilot.press("tab", "e", "!", "enter")
        await until(pilot, lambda: any("offset 1: gone" in text for text in texts(app, Notice)))
        assert answers(app) == ["one"]
        assert app.chat.prompt.text == "first!"
        assert app.chat.prompt.editing == 1
        assert len(app.chat.conversation.turns) == 2


async def test_an_answer_that_was_stopped_goes_on() -> None:
    model = FakeModel(["An ocean", threading.Event()], [" is", " water."])
    async with make_app(model).run_test() as pilot:
        app = await stopped(pilot, "An ocean")
        await pilot.press("tab", "enter")
        await until(pilot, lambda: answers(app) == ["An ocean is water."])
        await ready(pilot)
        assert notes(app) == []
        assert "An ocean is water." in screen_text(app)
        turn = app.chat.conversation.path()[-1]
        assert turn.text == "An ocean is water."
        assert turn.finish_reason == "stop"
        assert model.requests[1]["answer"] == 1
        assert len(turn.ids) == 3
        await pilot.press("enter")
        assert "only a last answer that was stopped" in status(app)


async def test_deleting_asks_first() -> None:
    async with make_app(FakeModel(["one"], ["two"])).run_test() as pilot:
        await ask(pilot, "first")
        app = await ask(pilot, "second")
        await pilot.press("tab", "up", "d")
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n")
        assert len(app.chat.conversation.turns) == 4
        await pilot.press("d", "y")
        await until(pilot, lambda: answers(app) == ["one"])
        assert texts(app, Question) == ["first"]
        assert [turn.text for turn in app.chat.conversation.turns.values()] == ["first", "one"]


async def test_a_message_and_its_code_are_copied() -> None:
    answer = "See:\n\n```python\nprint(1)\n```\n\nand\n\n```\ntwo\n```\n"
    async with make_app(FakeModel([answer + "\x1b]52;c;AAAA\x07"])).run_test() as pilot:
        app = await ask(pilot, "code")
        await pilot.press("tab", "c")
        assert app.clipboard == answer.strip()
        assert "copied" in status(app)
        await pilot.press("b")
        assert app.clipboard == "print(1)\n"
        await pilot.press("b")
        assert app.clipboard == "two\n"
        await pilot.press("b")
        assert app.clipboard == "print(1)\n"
        app.chat.action_code(2)
        await until(pilot, lambda: app.clipboard == "two\n")
        app.chat.action_code(3)
        await until(pilot, lambda: "no such code" in status(app))
        await pilot.press("up", "c")
        assert app.clipboard == "code"


async def test_copying_twice_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with make_app(FakeModel(["one"])).run_test() as pilot:
        app = await ask(pilot, "a")
        await pilot.press("tab", "c")
        assert "once more writes a file" in status(app)
        await pilot.press("c")
        (file,) = tmp_path.iterdir()
        assert file.read_text() == "one\n"
        assert file.stat().st_mode & 0o077 == 0


async def test_a_click_selects_a_message() -> None:
    async with make_app(FakeModel(["one"])).run_test() as pilot:
        app = await ask(pilot, "a")
        await pilot.click(Question)
        assert app.query_one(Transcript).selected == app.query_one(Question).turn_id
        await pilot.click(Answer)
        assert app.query_one(Transcript).selected == app.query_one(Answer).turn_id
        await pilot.press("escape")
        assert app.query_one(Transcript).selected is None
        assert app.focused is app.query_one(Prompt)


async def test_escape_stops_an_answer_from_among_the_messages_too() -> None:
    async with make_app(FakeModel(["a", threading.Event()])).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: answers(app) == ["a"])
        await pilot.press("tab", "r", "d", "e")
        assert "an answer is on its way" in status(app)
        await pilot.press("tab", "tab")
        assert app.chat.activity.is_answering
        await pilot.press("escape")
        await ready(pilot)
        assert app.chat.conversation.path()[-1].finish_reason == "cancelled"


async def test_of_a_long_conversation_the_end_is_mounted_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flashllm.ui.transcript.transcript.MOUNTED_AT_ONCE", 8)
    async with make_app(FakeModel(["x"])).run_test(size=(80, 10)) as pilot:
        transcript = await talked(pilot, 16, "answer {}")
        assert len(transcript.views()) == 8
        await until(pilot, lambda: "answer 15" in screen_text(pilot.app))
        await pilot.press("tab", *["up"] * 8)
        await until(pilot, lambda: transcript.selected == 32 - 8)
        await until(pilot, lambda: transcript.views()[0].turn_id < 32 - 8)
        assert 8 < len(transcript.views()) <= 16
        for _ in range(5):
            transcript.scroll_home(animate=False)
            await pilot.pause()
        await until(pilot, lambda: transcript.views()[0].turn_id == 1)
        turns = [view.turn_id for view in transcript.views()]
        assert turns == list(range(1, len(turns) + 1))


async def test_an_edit_ends_with_its_conversation() -> None:
    async with make_app(FakeModel(["one"], ["two"])).run_test() as pilot:
        app = await ask(pilot, "first")
        app.chat.prompt.put_text("a draft")
        await pilot.press("tab", "e", "x", "ctrl+n")
        await until(pilot, lambda: texts(app, Question) == [])
        assert app.chat.prompt.editing is None
        assert app.chat.prompt.border_title is None
        assert app.chat.prompt.text == "a draft"
        await ask(pilot, "second")
        assert [turn.text for turn in app.chat.conversation.path()] == ["second", "two"]


async def test_an_edit_ends_with_its_question() -> None:
    async with make_app(FakeModel(["one"], ["two"])).run_test() as pilot:
        app = await ask(pilot, "first")
        await pilot.press("tab", "up", "e")
        assert app.chat.prompt.editing == 1
        await pilot.press("tab", "up", "d", "y")
        await until(pilot, lambda: app.chat.conversation.turns == {})
        await until(pilot, lambda: app.chat.prompt.editing is None)
        await pilot.press("escape")
        await ask(pilot, "second")
        assert [turn.text for turn in app.chat.conversation.path()] == ["second", "two"]


async def test_what_was_typed_before_an_edit_comes_back_when_it_is_sent() -> None:
    async with make_app(FakeModel(["one"], ["two"])).run_test() as pilot:
        app = await ask(pilot, "first")
        app.chat.prompt.put_text("a draft")
        await pilot.press("tab", "e", "!", "enter")
        await until(pilot, lambda: answers(app) == ["two"])
        await ready(pilot)
        assert texts(app, Question) == ["first!\n‹ 2/2 ›"]
        assert app.chat.prompt.text == "a draft"


async def test_a_question_from_outside_is_edited_without_escape_sequences() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        app.chat.conversation.ask("a\x1b]52;c;ZXZpbA==\x07b\u202ec")
        await app.chat.shown.refresh()
        await pilot.press("tab", "e")
        assert app.chat.prompt.text == "abc"


@pytest.mark.parametrize("key", ["r", "enter"])
async def test_nothing_is_asked_of_a_model_that_is_not_open(key: str) -> None:
    model = FakeModel(["begun", threading.Event()], ["never asked for"])
    async with make_app(model).run_test() as pilot:
        app = await stopped(pilot, "begun")
        gate = open_later(app, ModelNotFound("there is no model any more"))
        await pilot.press("tab", key)
        assert "the model is being opened" in status(app)
        assert app.chat.activity.phase is Phase.OPENING
        gate.set()
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        await pilot.press(key)
        assert "Ctrl+R tries again" in status(app)
        assert app.chat.activity.phase is Phase.CLOSED
        assert len(app.chat.conversation.turns) == 2
        assert len(model.requests) == 1


async def test_what_is_being_answered_by_now_is_not_deleted() -> None:
    more = threading.Event()
    async with make_app(FakeModel(["one"])).run_test() as pilot:
        app = await ask(pilot, "first")
        gate = open_later(app, FakeModel(["two", more, "."]))
        await say(pilot, "second")
        await until(pilot, lambda: waiting(app) == ["second"])
        await pilot.press("tab", "d")
        assert isinstance(app.screen, ConfirmScreen)
        gate.set()
        await until(pilot, lambda: answers(app) == ["one", "two"])
        await pilot.press("y")
        await until(pilot, lambda: "an answer is on its way" in status(app))
        more.set()
        await ready(pilot)
        assert answers(app) == ["one", "two."]


async def test_a_long_conversation_is_left_for_another_one() -> None:
    async with make_app(FakeModel(["fine"])).run_test() as pilot:
        transcript = await talked(pilot, MOUNTED_AT_ONCE, "line\n\n" * 9)
        await until(pilot, lambda: transcript.scroll_y > 0)
        await pilot.press("ctrl+n")
        app = await ask(pilot, "another")
        assert answers(app) == ["fine"]
        assert len(transcript.views()) == 2


async def test_a_command_that_is_typed_is_not_about_a_message_chosen_before() -> None:
    async with make_app(FakeModel(["one"])).run_test() as pilot:
        app = await ask(pilot, "a")
        await pilot.click(Question)
        await pilot.click(Prompt)
        await say(pilot, "/copy")
        await until(pilot, lambda: app.clipboard == "one")


async def test_the_numbers_of_an_answer_that_goes_on_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flashllm.ui.panels.answer_tokens.TOKENS_KEPT", 3)
    model = FakeModel(["a", "b", threading.Event()], ["c"], ["d", "e"])
    async with make_app(model).run_test() as pilot:
        app = await stopped(pilot, "ab")
        await pilot.press("tab", "r")
        await until(pilot, lambda: answers(app) == ["c"])
        await ready(pilot)
        await pilot.press("left", "enter")
        await until(pilot, lambda: answers(app) == ["abde"])
        await ready(pilot)
        assert [token.text for token in app.chat.panels.numbers(2)] == ["a", "b", "d", "e"]
        assert app.chat.panels.numbers(3) == []


async def test_one_answer_is_asked_for_at_a_time() -> None:
    model = FakeModel(["one"], ["two"], ["three"])
    async with make_app(model, sampling=DRAWING).run_test() as pilot:
        app = await ask(pilot, "a")
        await asyncio.gather(app.chat.turns.regenerate(), app.chat.turns.regenerate())
        await until(pilot, lambda: answers(app) == ["two"])
        await ready(pilot)
        assert len(app.chat.conversation.turns) == 3
        assert len(model.requests) == 2
