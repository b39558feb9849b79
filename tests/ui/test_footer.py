"""The line of keys: whole ones, the most useful first, in any width."""

from __future__ import annotations

import pytest

from flashllm.ui.app import ChatApp
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.commands.bindings import FOOTER_ORDER, PLACES
from flashllm.ui.screens.help import HelpScreen
from flashllm.ui.screens.models import ModelPicker
from flashllm.ui.widgets.footer import KeyFooter
from tests.support.chat_pilot import ask, make_app, ready, screen_text
from tests.support.fake_engine import FakeModel
from tests.support.fake_library import FakeLibrary
from tests.support.screens import until

pytestmark = pytest.mark.usefixtures("footer")


def keys(app: ChatApp) -> list[str]:
    line = app.screen.query(KeyFooter).first()
    return [f"{key} {binding.description}" for binding, key, _, _ in line.shown]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, ["⏎ Send", "f1 Help", "^q Quit", "f5 Models", "^n New"]),
        (
            80,
            ["⏎ Send", "f1 Help", "^q Quit", "f5 Models", "^n New", "f4 Sessions",
             "tab Messages", "f6 Settings"],
        ),
        (20, ["⏎ Send", "f1 Help"]),
    ],
)  # fmt: skip
async def test_as_many_as_fit(width: int, expected: list[str]) -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(width, 24)) as pilot:
        app = await ready(pilot)
        await until(pilot, lambda: keys(app) == expected)
        assert " ".join(expected) in screen_text(app)


async def test_others_fit_when_the_terminal_grows_or_other_keys_work() -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(40, 24)) as pilot:
        app = await ask(pilot, "a")
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: len(keys(app)) == 8)
        await pilot.press("tab")
        await until(
            pilot,
            lambda: keys(app)[:5] == ["e Edit", "r Regenerate", "c Copy", "⏎ Continue", "esc Back"],
        )


@pytest.mark.parametrize("width", [40, 80])
async def test_pages_show_whole_keys_too(width: int) -> None:
    async with make_app(FakeModel(["x"]), library=FakeLibrary).run_test(size=(width, 24)) as pilot:
        app = await ready(pilot)
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, ModelPicker) and len(keys(app)) > 2)
        line = " ".join(keys(app))
        await until(pilot, lambda: line in screen_text(app))
        assert keys(app)[:3] == ["⏎ Open", "c Convert", "/ Filter"]


async def test_escape_says_what_it_would_do() -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(80, 24)) as pilot:
        app = await ask(pilot, "a")
        assert "esc" not in " ".join(keys(app))
        await pilot.press("slash")
        await until(pilot, lambda: "esc Close" in keys(app))
        await pilot.press("escape", "backspace", "tab", "up", "e")
        await until(pilot, lambda: "esc End edit" in keys(app))


async def test_a_click_presses_the_key() -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(80, 24)) as pilot:
        app = await ready(pilot)
        line = app.screen.query_one(KeyFooter)
        await until(pilot, lambda: len(keys(app)) == 8)
        await pilot.hover(line, (len("⏎ Send "), 0))
        assert line._under_mouse is line.shown[1]
        await pilot.click(line, (len("⏎ Send"), 0))  # between two
        assert isinstance(app.screen, ChatScreen)
        await pilot.click(line, (len("⏎ Send "), 0))
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))


async def test_a_click_on_a_key_that_is_not_possible_rings() -> None:
    rung = []
    async with make_app(FakeModel(["x"])).run_test(size=(80, 24)) as pilot:
        app = await ready(pilot)
        line = app.screen.query_one(KeyFooter)
        await until(pilot, lambda: len(keys(app)) == 8)
        binding, key, _, tooltip = line.shown[1]
        line.shown = [(binding, key, False, tooltip)]
        app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        await pilot.click(line, (0, 0))
        assert rung == [1]
        assert isinstance(app.screen, ChatScreen)


def test_the_order_names_keys_that_there_are() -> None:
    known = {binding.id: binding for place in PLACES for binding in place.bindings}
    assert set(FOOTER_ORDER) <= known.keys()
    assert all(known[name].show for name in FOOTER_ORDER)
    assert len(set(FOOTER_ORDER)) == len(FOOTER_ORDER)
