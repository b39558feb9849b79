"""`/compact`: earlier messages are summed up or left out, on a branch; nothing is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from flashllm.conversations.store import SessionStore
from flashllm.errors import ReadFailed
from flashllm.ui.app import ChatApp
from flashllm.ui.chat.compaction import SUM_UP
from flashllm.ui.chat.status import Phase
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import answers, ask, make_app, notes, ready, say, status, texts
from tests.support.fake_engine import FakeModel, Step
from tests.support.screens import until

TALK: list[list[Step]] = [["one"], ["two"], ["three"]]


def sent(model: FakeModel) -> list[str]:
    assert model.tokenizer is not None
    return [message["content"] for message in model.tokenizer.conversations[-1]]


def shown(app: ChatApp) -> list[str]:
    return [turn.text for turn in app.chat.conversation.path()]


async def test_the_model_sums_up_and_the_last_question_stays(tmp_path: Path) -> None:
    model = FakeModel(*TALK, ["They spoke", " of seas."], ["four"])
    async with make_app(model, store=tmp_path / "s.db").run_test(size=(100, 40)) as pilot:
        for text in ("a", "b", "c"):
            app = await ask(pilot, text)
        whole = shown(app)
        await say(pilot, "/compact")
        await until(pilot, lambda: answers(app) == ["They spoke of seas.", "three"])
        await ready(pilot)
        assert sent(model) == ["a", "one", "b", "two", SUM_UP]
        assert shown(app) == [SUM_UP, "They spoke of seas.", "c", "three"]
        words = "4 earlier messages are summed up here, by the model itself"
        await until(pilot, lambda: words in texts(app, Notice)[-1])
        assert "a summary of earlier messages, written by the model" in notes(app)
        assert str(app.chat.meter.render()).strip().endswith("?/512")
        await ask(pilot, "d")
        assert sent(model) == [SUM_UP, "They spoke of seas.", "c", "three", "d"]
        assert str(app.chat.meter.render()).strip().endswith("/512")
        assert "?" not in str(app.chat.meter.render())
        await pilot.press("tab", *["up"] * 5, "left")
        await until(pilot, lambda: shown(app) == whole)
        assert app.chat.saving.flush(10)
    with SessionStore(tmp_path / "s.db") as store:
        kept = store.load(1).conversation
        assert len(kept.turns) == 6 + 4 + 2
        assert [turn.text for turn in kept.path()] == whole
        summaries = [turn.text for turn in kept.turns.values() if "sums_up" in turn.numbers]
        assert summaries == ["They spoke of seas."]


async def test_earlier_messages_are_left_out_without_the_model(tmp_path: Path) -> None:
    model = FakeModel(*TALK, ["four"])
    async with make_app(model, store=tmp_path / "s.db").run_test(size=(100, 40)) as pilot:
        for text in ("a", "b", "c"):
            app = await ask(pilot, text)
        await say(pilot, "/compact drop")
        await until(pilot, lambda: shown(app) == ["c", "three"])
        await until(pilot, lambda: "4 earlier messages are left out" in texts(app, Notice)[-1])
        assert len(model.requests) == 3
        await ask(pilot, "d")
        assert sent(model) == ["c", "three", "d"]
        assert model.tokenizer is not None
        assert model.tokenizer.known[-1].keys() == {1}  # the ids of the answer came along
        assert texts(app, Question)[0] == "c\n‹ 2/2 ›"


@pytest.mark.parametrize("end", ["stop", "fail", "silent"])
async def test_where_nothing_is_summed_up_all_is_as_it_was(tmp_path: Path, end: str) -> None:
    never = threading.Event()
    steps: dict[str, list[Step]] = {
        "stop": ["They sp", never],
        "fail": ["They sp", ReadFailed("EIO")],
        "silent": [],
    }
    model = FakeModel(*TALK[:2], steps[end], ["three"])
    async with make_app(model, store=tmp_path / "s.db").run_test() as pilot:
        for text in ("a", "b"):
            app = await ask(pilot, text)
        await say(pilot, "/compact")
        if end == "stop":
            await until(pilot, lambda: answers(app) == ["They sp"])
            await pilot.press("escape")
        await until(pilot, lambda: "the conversation is as it was" in texts(app, Notice)[-1])
        await ready(pilot)
        assert shown(app) == ["a", "one", "b", "two"]
        assert len(app.chat.conversation.turns) == 4
        assert app.chat.prompt.text == ""
        await ask(pilot, "c")
        assert sent(model) == ["a", "one", "b", "two", "c"]
        assert app.chat.saving.flush(10)
    with SessionStore(tmp_path / "s.db") as store:
        assert len(store.load(1).conversation.turns) == 6


async def test_what_cannot_be_compacted_says_why() -> None:
    model = FakeModel(["one"], ["begun", threading.Event()])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        for line, words in (
            ("/compact", "there is nothing before the last question"),
            ("/compact all", "'all' is unknown"),
        ):
            await say(pilot, line)
            await until(pilot, lambda words=words: words in texts(app, Notice)[-1])
        app.chat.prompt.put_text("")
        await ask(pilot, "a")
        await say(pilot, "/compact drop")
        await until(pilot, lambda: len(texts(app, Notice)) == 3)
        await say(pilot, "b")
        await until(pilot, lambda: app.chat.activity.phase is Phase.WRITING)
        await say(pilot, "/compact")
        await until(pilot, lambda: "an answer is on its way" in texts(app, Notice)[-1])
        await pilot.press("escape")
        await ready(pilot)


async def test_what_had_no_room_while_it_was_summed_up_is_said() -> None:
    model = FakeModel(["w "] * 10, context=64)
    async with make_app(model, max_tokens=12).run_test(size=(100, 40)) as pilot:
        for text in ("a", "b", "c", "d"):
            app = await ask(pilot, text)
        before = app.chat.conversation.dropped
        await say(pilot, "/compact")
        await until(pilot, lambda: "summed up here" in texts(app, Notice)[-1])
        assert "of them had no room and are left out" in texts(app, Notice)[-1]
        assert app.chat.conversation.dropped == 0  # of the branch that is shown
        assert before == 0


async def test_a_summary_is_not_answered_again() -> None:
    model = FakeModel(*TALK[:2], ["They spoke."])
    async with make_app(model).run_test() as pilot:
        for text in ("a", "b"):
            app = await ask(pilot, text)
        await say(pilot, "/compact")
        await until(pilot, lambda: len(answers(app)) == 2)
        await ready(pilot)
        await say(pilot, "/delete 2")
        await pilot.pause()
        await pilot.press("y")
        await until(pilot, lambda: shown(app) == [SUM_UP, "They spoke."])
        await say(pilot, "/regenerate")
        await until(pilot, lambda: "that is a summary" in status(app))
        assert len(model.requests) == 3
