"""The panels in the chat: shown, hidden, fed with the tokens of the answer; the picker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.errors import EngineLost
from flashllm.library.models import ModelChoice
from flashllm.ui.chat.status import Phase
from flashllm.ui.panels.io_lines import TOKENS
from flashllm.ui.panels.io_panel import IoPanel
from flashllm.ui.panels.neuron_map import NeuronMapView
from flashllm.ui.screens.convert import ConvertScreen
from flashllm.ui.screens.models import ModelPicker
from flashllm.ui.screens.token_details import TokenView
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import (
    answers,
    ask,
    make_app,
    ready,
    say,
    screen_text,
    status,
    texts,
)
from tests.support.fake_engine import FakeModel
from tests.support.screens import until
from tests.support.specs import SPEC


async def test_the_panel_shows_the_answer_that_is_there_when_it_is_opened() -> None:
    async with make_app(FakeModel(["a"] * 30)).run_test(size=(100, 40)) as pilot:
        app = await ask(pilot, "go")
        panel = app.query_one(IoPanel)
        assert not panel.display
        await pilot.press("f2")
        await until(pilot, lambda: "MB" in screen_text(app))
        assert panel.size.height > 3
        assert len(panel._tokens) == 29  # the first one came with the prompt
        await ask(pilot, "more")
        assert len(panel._tokens) == TOKENS
        await pilot.press("f2")
        assert not panel.display


async def test_what_the_prompt_cost_is_shown_and_what_it_did_not_have_to() -> None:
    async with make_app(FakeModel(["a", "b"], ["c", "d"])).run_test(size=(100, 40)) as pilot:
        app = await ready(pilot)
        await pilot.press("f2")
        await until(pilot, lambda: "prompt  none yet" in screen_text(app))
        await ask(pilot, "one two three")
        await until(pilot, lambda: "prompt  4 tok, " in screen_text(app))
        await ask(pilot, "four")
        await until(pilot, lambda: " kept, " in screen_text(app))
        await pilot.press("f2", "f2")
        await until(pilot, lambda: " kept, " in screen_text(app))


async def test_a_token_that_came_with_a_prompt_is_known_where_an_answer_went_on() -> None:
    steps = [*["a"] * 3, 30.0, "b"]
    async with make_app(FakeModel(steps, ["c", "d"])).run_test(size=(100, 40)) as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: answers(app) == ["aaa"])
        await pilot.press("escape")
        await until(pilot, lambda: app.chat.activity.phase is Phase.READY)
        (turn,) = [turn for turn in app.chat.conversation.path() if turn.role == "assistant"]
        await app.chat.answering.go_on(turn)
        await until(pilot, lambda: len(app.chat.panels.tokens.of(turn.id)) == 5)
        await until(pilot, lambda: app.chat.activity.phase is Phase.READY)
        prompts = [token.index for token in app.chat.panels.numbers(turn.id) if token.prompt]
        assert prompts == [0, 3]


async def test_no_map_is_made_while_nobody_looks() -> None:
    model = FakeModel(["a", 0.2, "b"])
    async with make_app(model).run_test(size=(100, 40)) as pilot:
        app = await ask(pilot, "go")
        assert model.maps_made == 0
        await pilot.press("f3")
        await until(pilot, lambda: model.maps_made >= 1)
        assert app.query_one(NeuronMapView).display
        looked = model.maps_made
        await ask(pilot, "more")
        await until(pilot, lambda: model.maps_made > looked)
        await pilot.press("f3")
        made = model.maps_made
        await ask(pilot, "again")
        assert model.maps_made == made


async def test_a_map_that_comes_later_is_shown_when_it_is_there() -> None:
    model = FakeModel(["a"])
    late: list[Any] = [None, None, model.neuron_map()]
    model.neuron_map = lambda: late.pop(0) if len(late) > 1 else late[0]  # type: ignore[method-assign]
    async with make_app(model).run_test(size=(100, 40)) as pilot:
        app = await ready(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: "no map of neurons yet" in screen_text(app))
        await until(pilot, lambda: "DRAM" in screen_text(app))


async def test_the_tokens_of_an_answer_and_their_numbers() -> None:
    async with make_app(FakeModel(["one", " two"])).run_test(size=(100, 40)) as pilot:
        app = await ready(pilot)
        app.chat.action_tokens()
        assert "of the answers of this run only" in status(app)
        await ask(pilot, "go")
        await pilot.press("tab", "t")
        assert isinstance(app.screen, TokenView)
        await until(pilot, lambda: "token 2 of 2" in screen_text(app))
        await pilot.press("escape")
        assert not isinstance(app.screen, TokenView)


async def test_numbers_are_there_after_the_engine_has_gone() -> None:
    model = FakeModel(["one", " two", EngineLost("the engine was killed")])
    async with make_app(model).run_test(size=(100, 40)) as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        await pilot.press("tab", "t")
        await until(pilot, lambda: "token 2 of 2" in screen_text(app))


async def test_an_answer_has_its_own_numbers_and_no_others(tmp_path: Path) -> None:
    """Turns of another conversation have the same ids."""
    with SessionStore(tmp_path / "s.db") as store:
        kept = store.create()
        store.save_turn(kept, Turn(1, None, "user", "before"))
        store.save_turn(kept, Turn(2, 1, "assistant", "an answer", finish_reason="stop"))
        store.save_leaf(kept, 2)
    model = FakeModel(["a", "b", "c"])
    async with make_app(model, store=tmp_path / "s.db").run_test(size=(100, 40)) as pilot:
        app = await ask(pilot, "first")
        assert [token.text for token in app.chat.panels.numbers(2)] == ["a", "b", "c"]
        await app.chat.open_session(kept)
        assert answers(app) == ["an answer"]
        assert app.chat.panels.numbers(2) == []


async def test_each_answer_is_beside_its_own_prompt() -> None:
    async with make_app(FakeModel(["a"] * 3, ["b"] * 3)).run_test(size=(100, 40)) as pilot:
        app = await ask(pilot, "one two")
        await ask(pilot, "three")
        first, second = app.chat.panels.tokens.turns
        assert app.chat.panels._prompts == {first: {0: 3}, second: {0: 3 + 4 + 2}}


@pytest.mark.parametrize("size", [(40, 12), (40, 18), (80, 20), (80, 24), (120, 40)], ids=str)
async def test_both_panels_leave_room_for_the_conversation(size: tuple[int, int]) -> None:
    model = FakeModel(["a"] * 30)
    model.info = dataclasses.replace(model.info, spec=dataclasses.replace(SPEC, n_layers=32))
    async with make_app(model).run_test(size=size) as pilot:
        app = await ask(pilot, "go")
        await pilot.press("f2")
        alone = app.chat.panels.io.size.height
        await pilot.press("f3")
        await until(
            pilot, lambda: "DRAM" in screen_text(app) and app.chat.panels.map.size.height < 20
        )
        await pilot.pause()
        assert app.chat.shown.transcript.size.height >= 3
        assert "used" in screen_text(app)
        assert "flash" in screen_text(app)
        await pilot.press("f3")
        assert app.chat.panels.io.size.height == alone


class NoModels:
    """A library without anything in it."""

    def scan(self) -> Iterator[Any]:
        return iter(())

    checkpoints = scan

    def destination(self, source: Path) -> Path:
        return source

    def preview(self, *_: object) -> Any:
        raise NotImplementedError


async def test_another_model_is_opened_and_the_conversation_goes_on(tmp_path: Path) -> None:
    models = {None: FakeModel(["one"]), tmp_path: FakeModel(["two"])}
    app = make_app(FakeModel([]), library=NoModels)
    app.chat.engine._open_engine = lambda request: models[request.choice.path]  # type: ignore[assignment,return-value]
    async with app.run_test() as pilot:
        await ask(pilot, "first")
        await pilot.press("f5")
        assert isinstance(app.screen, ModelPicker)
        app.screen.dismiss(ModelChoice(tmp_path, "other"))
        await until(pilot, lambda: app.chat.choice.path == tmp_path)
        await ready(pilot)
        assert models[None].closed
        await ask(pilot, "second")
        assert answers(app) == ["one", "two"]


async def test_the_model_that_is_open_is_not_opened_again(tmp_path: Path) -> None:
    model = FakeModel(["one"])
    app = make_app(model, choice=ModelChoice(tmp_path, "as it was typed"), library=NoModels)
    async with app.run_test() as pilot:
        await ready(pilot)
        app.chat.take_model(ModelChoice(tmp_path, "as it is called"))
        assert app.chat.activity.phase is Phase.READY
        assert not model.closed


async def test_converting_is_offered() -> None:
    async with make_app(FakeModel(["one"]), library=NoModels).run_test() as pilot:
        app = await ready(pilot)
        app.chat.action_convert()
        await until(pilot, lambda: isinstance(app.screen, ConvertScreen))


async def test_an_engine_that_is_gone_can_be_opened_again() -> None:
    models = [FakeModel(["half", EngineLost("the engine was killed")]), FakeModel(["whole"])]
    app = make_app(models[0])
    app.chat.engine._open_engine = lambda _choice: models.pop(0)  # type: ignore[assignment,return-value]
    async with app.run_test() as pilot:
        await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        assert any("the engine was killed" in text for text in texts(app, Notice))
        assert answers(app) == ["half"]
        await say(pilot, "again")
        assert app.chat.prompt.text == "again"
        await app.chat.run_action("retry")
        await ready(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: answers(app) == ["half", "whole"])
