"""An empty conversation: three questions that can be asked by a key or a click."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm.library.models import ModelChoice
from flashllm.ui.chat.status import Phase
from flashllm.ui.chat.welcome import BEGINNINGS, COMMON_WORDS, QUESTIONS, WORDS
from flashllm.ui.transcript.invitation import Invitation, SuggestedQuestion
from flashllm.ui.transcript.turn import Question
from tests.support.chat_pilot import answers, ask, make_app, ready, say, screen_text, status, texts
from tests.support.fake_engine import FakeModel, FakeTokenizer
from tests.support.screens import until

BIG = ModelChoice(Path("/m/big"), "big")


def offered(app: object) -> list[str]:
    return [one.question for one in app.query(SuggestedQuestion)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("choice", "has_template", "expected"),
    [
        (ModelChoice(), True, WORDS),
        (ModelChoice(Path("/cache/models/demo-0123456789abcdef"), "x"), True, WORDS),
        (ModelChoice(None, "x", "demo-moe"), True, COMMON_WORDS),
        (ModelChoice(Path("/cache/models/demo-moe-0123456789abcdef"), "x"), True, COMMON_WORDS),
        (BIG, True, QUESTIONS),
        (BIG, False, BEGINNINGS),
    ],
)
async def test_the_questions_are_for_the_model_that_is_open(
    choice: ModelChoice, has_template: bool, expected: tuple[str, ...]
) -> None:
    tokenizer = FakeTokenizer()
    tokenizer.has_chat_template = has_template
    async with make_app(FakeModel(["x"], tokenizer=tokenizer), choice=choice).run_test() as pilot:
        app = await ready(pilot)
        await until(pilot, lambda: offered(app) == list(expected))
        assert "flashllm pull" in screen_text(app)
        assert "F5 opens those on this machine" in screen_text(app)


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        (["tab", "2"], WORDS[1]),
        (["tab", "enter"], WORDS[0]),
        (["tab", "down", "down", "enter"], WORDS[2]),
        (["tab", "up", "enter"], WORDS[2]),
    ],
)
async def test_a_key_asks_one(keys: list[str], asked: str) -> None:
    async with make_app(FakeModel(["fine"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: answers(app) == ["fine"])
        assert texts(app, Question) == [asked]
        assert list(app.query(Invitation)) == []
        assert app.focused is app.chat.prompt
        await pilot.press("up")
        assert app.chat.prompt.text == asked


async def test_a_click_asks_one_and_what_is_typed_stays() -> None:
    async with make_app(FakeModel(["fine"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press(*"mine")
        await pilot.click(list(app.query(SuggestedQuestion))[1])
        await until(pilot, lambda: texts(app, Question) == [WORDS[1]])
        assert app.chat.prompt.text == "mine"


async def test_letters_typed_there_are_a_message_of_ones_own() -> None:
    async with make_app(FakeModel(["fine"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("tab", "W", "h", "o", "enter")
        await until(pilot, lambda: texts(app, Question) == ["Who"])
        await ready(pilot)


@pytest.mark.parametrize("key", ["escape", "tab", "shift+tab"])
async def test_keys_lead_back(key: str) -> None:
    async with make_app(FakeModel(["fine"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("tab")
        assert isinstance(app.focused, SuggestedQuestion)
        await pilot.press(key)
        assert app.focused is app.chat.prompt


async def test_it_comes_back_wherever_nothing_is_there() -> None:
    model = FakeModel(["fine"], context=50)
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "a")
        assert offered(app) == []
        await pilot.press("tab", "up", "d", "y")
        await until(pilot, lambda: offered(app) == list(WORDS))
        app.chat.action_focus_prompt()
        await ask(pilot, "word " * 60)  # too long
        await until(pilot, lambda: offered(app) == list(WORDS))
        app.chat.prompt.put_text("")
        await ask(pilot, "b")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: offered(app) == list(WORDS))
        await say(pilot, "/clear")
        await pilot.pause()
        assert offered(app) == list(WORDS)


async def test_where_no_model_is_open_nothing_is_asked() -> None:
    async with make_app(MemoryError()).run_test() as pilot:  # type: ignore[arg-type]
        app = pilot.app
        chat = app.chat  # type: ignore[attr-defined]
        await until(pilot, lambda: chat.activity.phase is Phase.CLOSED)
        await pilot.press("tab", "1")
        await until(pilot, lambda: "Ctrl+R tries again" in status(app))  # type: ignore[arg-type]
        assert chat.conversation.turns == {}


async def test_few_lines_show_the_questions() -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(40, 12)) as pilot:
        app = await ready(pilot)
        await until(pilot, lambda: all(one in screen_text(app) for one in WORDS))
