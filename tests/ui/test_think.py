"""Whether and how much a model is to think: set in the chat, told to the template, kept."""

from __future__ import annotations

from pathlib import Path

from flashllm.options import EFFORT_VARIABLE, ReasoningOptions
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import ask, make_app, ready, say, screen_text, status, texts
from tests.support.fake_engine import FakeModel, FakeTokenizer
from tests.support.screens import until


class EffortTokenizer(FakeTokenizer):
    """Its template reads an effort, and not whether to think."""

    reasoning_variables = frozenset({EFFORT_VARIABLE})


UNREAD = "this model's template knows no enable_thinking: think changes nothing"


async def test_commands_are_told_to_the_template(tmp_path: Path) -> None:
    store = tmp_path / "conversations.db"
    model = FakeModel(["one"], ["two"], tokenizer=EffortTokenizer())
    async with make_app(model, store=store).run_test(size=(100, 30)) as pilot:
        app = await ask(pilot, "first")
        await say(pilot, "/effort high")
        await until(pilot, lambda: "effort is high from the next answer on" in status(app))
        await ask(pilot, "second")
        assert model.tokenizer.reasoning == [ReasoningOptions(), ReasoningOptions(effort="high")]
        assert UNREAD not in screen_text(app)
        for value in ("on", "off", "OFF"):
            await say(pilot, f"/think {value}")
            await until(pilot, lambda said=value: f"think is {said}" in status(app))
        assert texts(app, Notice).count(UNREAD) == 1
        await say(pilot, "/think maybe")
        await until(pilot, lambda: "think: 'maybe' is unknown" in screen_text(app))
        assert app.chat.saving.settings["think"] == "off"
        session = app.chat.session_id
    other = make_app(FakeModel(["x"], tokenizer=EffortTokenizer()), store=store, session=session)
    async with other.run_test(size=(100, 30)) as pilot:
        app = await ready(pilot)
        assert app.chat.answer_settings.reasoning == ReasoningOptions("off", "high")
        assert texts(app, Notice).count(UNREAD) == 1


async def test_what_the_command_line_says_is_told_when_the_model_is_open() -> None:
    app = make_app(FakeModel(["x"]), reasoning=ReasoningOptions("on", "low"))
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        assert sum("template knows no" in text for text in texts(app, Notice)) == 2


async def test_tokens_of_reasoning_are_counted_apart() -> None:
    script = ["<think>", "so", " it is", "</think>", "Yes."]
    async with make_app(FakeModel(script, ["plain"])).run_test(size=(80, 24)) as pilot:
        app = await ask(pilot, "Is it?")
        await until(pilot, lambda: status(app).startswith("5 tok, 4 thought | "))
        await ask(pilot, "And now?")
        await until(pilot, lambda: status(app).startswith("1 tok | "))


async def test_an_answer_that_goes_on_within_reasoning_is_counted_as_such() -> None:
    model = FakeModel(["<think>", "so", " it is"], [" and", "</think>", "Yes."])
    async with make_app(model, max_tokens=2).run_test(size=(80, 24)) as pilot:
        app = await ask(pilot, "Is it?")
        await until(pilot, lambda: status(app).startswith("2 tok, 2 thought | "))
        await say(pilot, "/continue")
        await until(pilot, lambda: status(app).startswith("2 tok, 2 thought | "))
        await until(pilot, lambda: len(model.requests) == 2)


async def test_the_panel_says_why_a_prompt_was_not_kept() -> None:
    model = FakeModel(["<think>hm</think>", "Yes."], ["No."])
    async with make_app(model).run_test(size=(100, 30)) as pilot:
        app = await ask(pilot, "Is it?")
        await pilot.press("f2")
        model.cached = model.cached[:2]  # as where the template leaves the reasoning out
        await ask(pilot, "And now?")
        await until(pilot, lambda: "2 kept (reasoning cut), 50 ms, 300 kB" in screen_text(app))
        await pilot.press("ctrl+n")
        await ask(pilot, "Something else?")
        await until(pilot, lambda: "1 kept (other chat)" in screen_text(app))
