"""How full the context is, and that it is said before something is left out."""

from __future__ import annotations

import pytest

from flashllm.ui.context_meter import ContextMeter, Fill
from flashllm.ui.turn_view import Notice
from tests.ui.chat_pilot import ask, make_app, ready, texts, until
from tests.ui.fake_engine import FakeModel


@pytest.mark.parametrize(("max_tokens", "limit"), [(10, 90), (512, 75)])
def test_the_limit_leaves_room_for_an_answer(max_tokens: int, limit: int) -> None:
    fill = Fill.of(45, 100, max_tokens)
    assert fill.limit == limit
    assert fill.share == 45 / limit
    assert f"Beyond {limit}" in fill.words()


async def test_the_meter_warns_and_says_what_comes_before_it_does() -> None:
    model = FakeModel(["w "] * 10, context=50)
    async with make_app(model, max_tokens=10).run_test() as pilot:
        app = await ready(pilot)
        meter = app.query_one(ContextMeter)
        assert str(meter.render()) == "ctx 0/50"
        await ask(pilot, "one")  # 2 tokens and 10 of the answer, of 40
        assert not meter.has_class("-warning")
        await ask(pilot, "two")
        assert str(meter.render()) == "ctx 25/50"
        await ask(pilot, "three")
        await until(pilot, lambda: meter.has_class("-full"))
        await until(pilot, lambda: any("oldest question" in text for text in texts(app, Notice)))
        assert not any("outgrew" in text for text in texts(app, Notice))
        await pilot.press("ctrl+n")
        assert str(meter.render()) == "ctx 0/50"
        await app.run_action("context")
        await until(pilot, lambda: any("0 of 50 tokens" in text for text in texts(app, Notice)))
