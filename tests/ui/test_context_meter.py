"""How full the context is, and that it is said before something is left out."""

from __future__ import annotations

import threading

import pytest

from flashllm.ui.chat.context_meter import ContextMeter, Fill
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import ask, make_app, ready, say, texts
from tests.support.fake_engine import FakeModel, Prefill
from tests.support.screens import until


@pytest.mark.parametrize(("max_tokens", "limit"), [(10, 90), (512, 75)])
def test_the_limit_leaves_room_for_an_answer(max_tokens: int, limit: int) -> None:
    fill = Fill.of(45, 100, max_tokens)
    assert fill.limit == limit
    assert fill.share == 45 / limit
    assert f"Beyond {limit}" in fill.words()


async def test_what_is_kept_of_a_prompt_is_in_the_context_while_the_answer_is_written() -> None:
    never = threading.Event()
    model = FakeModel(["w"] * 10, [Prefill(1, 2), "v", Prefill(2, 2), never], context=50)
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "one")
        assert str(app.chat.meter.render()) == "ctx 12/50"
        await say(pilot, "two")
        await until(pilot, lambda: str(app.chat.meter.render()) == "ctx 16/50")
        await pilot.press("escape")
        await ready(pilot)


async def test_the_meter_warns_and_says_what_comes_before_it_does() -> None:
    model = FakeModel(["w "] * 10, context=50)
    async with make_app(model, max_tokens=10).run_test() as pilot:
        app = await ready(pilot)
        meter = app.query_one(ContextMeter)
        assert str(meter.render()) == " ctx 0/50"
        await ask(pilot, "one")  # 2 tokens and 10 of the answer, of 40
        assert not meter.has_class("-warning")
        await ask(pilot, "two")
        assert str(meter.render()) == "ctx 25/50"
        await ask(pilot, "three")
        await until(pilot, lambda: meter.has_class("-full"))
        await until(pilot, lambda: any("oldest question" in text for text in texts(app, Notice)))
        assert not any("outgrew" in text for text in texts(app, Notice))
        await pilot.press("ctrl+n")
        assert str(meter.render()) == " ctx 0/50"
        await app.chat.run_action("context")
        await until(pilot, lambda: any("0 of 50 tokens" in text for text in texts(app, Notice)))
