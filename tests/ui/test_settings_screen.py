"""The page of settings: what is wrong is said while one types, and nothing wrong is applied."""

from __future__ import annotations

from typing import Any

import pytest
from textual import events
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from flashllm.engine.sampling import Sampling
from flashllm.ui.commands.setting_values import SETTINGS, ChatValues
from flashllm.ui.screens.settings import SettingsScreen
from tests.support.screens import Around, shown, until

THEMES = ("nord", "textual-dark", "textual-light")


def around(values: ChatValues | None = None, **options: Any) -> Around:
    return Around(lambda: SettingsScreen(values or ChatValues(), THEMES, **options))


def rows_seen(app: Around) -> str:
    """The part of the list of settings that is on the screen."""
    region = app.screen.query_one(VerticalScroll).region
    lines = shown(app).splitlines()[region.y : region.bottom]
    return "".join(f"\n{text[region.x + 1 :]}" for text in lines)


def page(app: Around) -> SettingsScreen:
    assert isinstance(app.screen, SettingsScreen)
    return app.screen


def line(app: Around) -> Input:
    return app.screen.query_one(Input)


async def go_to(pilot: Pilot[Any], name: str) -> None:
    app = pilot.app
    for _ in SETTINGS:
        if app.screen.setting.name == name:  # type: ignore[attr-defined]
            return
        await pilot.press("tab")
    raise AssertionError(name)


async def write(pilot: Pilot[Any], name: str, text: str) -> None:
    """As one types it: what stood there goes first."""
    await go_to(pilot, name)
    await pilot.press("end", "ctrl+u", *text)


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
async def test_values_are_changed_and_applied(size: tuple[int, int]) -> None:
    app = around(ChatValues("Be brief.", Sampling(seed=7)))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "System prompt" in shown(app)
        assert "Be brief." in shown(app)
        await pilot.press("end", "x", "tab", "end", "backspace", *"0.7")
        await write(pilot, "max_tokens", "99")
        await pilot.press("ctrl+s")
        expected = ChatValues("Be brief.x", Sampling(0.7, seed=7), 99, "textual-dark")
        assert app.results == [expected]


async def test_enter_in_a_field_applies() -> None:
    app = around(focus="temp")
    async with app.run_test() as pilot:
        await pilot.press("backspace", "1", "enter")
        assert app.results == [ChatValues(sampling=Sampling(1.0))]


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 50)])
async def test_every_setting_can_be_reached_and_is_seen(size: tuple[int, int]) -> None:
    app = around()
    async with app.run_test(size=size) as pilot:
        for setting in SETTINGS:
            await pilot.pause()
            assert page(app).setting is setting
            focused = app.focused
            assert focused is not None
            assert 0 <= focused.region.y < focused.region.bottom <= size[1]
            assert f"\n{setting.label}" in rows_seen(app)
            assert f"{setting.label}: " in shown(app)
            await pilot.press("tab")
        assert page(app).setting is SETTINGS[0]
        await pilot.press("shift+tab")
        assert page(app).setting is SETTINGS[-1]
        assert app.focused is line(app)
        assert line(app).value == "textual-dark"


async def test_what_was_typed_stays_while_others_are_changed() -> None:
    app = around()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*"Hi")
        await write(pilot, "temp", "0.5")
        await write(pilot, "seed", "9")
        for name, text in (("temp", "0.5"), ("seed", "9"), ("top_k", "0")):
            await go_to(pilot, name)
            assert line(app).value == text
        assert "Hi" in rows_seen(app)
        await go_to(pilot, "system")
        assert app.screen.query_one(TextArea).text == "Hi"
        await pilot.press("ctrl+s")
        assert app.results == [ChatValues("Hi", Sampling(0.5, seed=9))]


async def test_a_setting_is_picked_by_a_click() -> None:
    app = around()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = app.screen.query_one(VerticalScroll).region
        await pilot.click(offset=(rows.x + 4, rows.y + 2))
        assert page(app).setting.name == "top_k"
        assert app.focused is line(app)
        await pilot.press("backspace", "7")
        await pilot.click(offset=(rows.x + 4, rows.y))
        assert app.focused is app.screen.query_one(TextArea)
        await pilot.press("ctrl+s")
        assert app.results == [ChatValues(sampling=Sampling(top_k=7))]


async def test_what_is_wrong_is_said_while_one_types_and_not_applied() -> None:
    app = around(focus="top_p")
    async with app.run_test(size=(80, 40)) as pilot:
        await write(pilot, "top_p", "1.5")
        await until(pilot, lambda: "top_p: '1.5' is out of range; expected above 0" in shown(app))
        await pilot.press("ctrl+s")
        assert app.results == []
        await write(pilot, "top_p", "0.5")
        await until(pilot, lambda: "expected above 0" not in shown(app))
        await pilot.press("ctrl+s")
        assert app.results == [ChatValues(sampling=Sampling(top_p=0.5))]


async def test_the_first_wrong_field_gets_the_focus() -> None:
    app = around()
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "seed", "x")
        await write(pilot, "max_tokens", "0")
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert page(app).setting.name == "seed"
        assert line(app).value == "x"
        assert "Seed: seed: 'x' is not" in shown(app)


async def test_a_theme_is_shown_while_it_is_typed_and_taken_back() -> None:
    app = around(focus="theme")
    async with app.run_test(size=(80, 24)) as pilot:
        line(app).value = "nord"
        await until(pilot, lambda: app.theme == "nord")
        line(app).value = "nor"
        await until(pilot, lambda: "there is no theme 'nor'; did you mean 'nord'?" in shown(app))
        assert app.theme == "nord"
        await pilot.press("escape")
        assert app.theme == "textual-dark"
        assert app.results == [None]


async def test_what_is_pasted_does_not_act_on_the_terminal() -> None:
    app = around(focus="theme")
    async with app.run_test(size=(80, 40)) as pilot:
        theme, system = line(app), app.screen.query_one(TextArea)
        theme.value = ""
        theme.post_message(events.Paste("no\x1b]52;c;eA==\x07r\x1b[2J\u202ed"))
        await until(pilot, lambda: theme.value != "")
        assert theme.value == "nord"
        await go_to(pilot, "system")
        system.post_message(events.Paste("Be\x1b]0;t\x07 brief.\r\nAlways\u202e."))
        await until(pilot, lambda: system.text != "")
        assert system.text == "Be brief.\nAlways."


async def test_a_system_prompt_is_harmless() -> None:
    app = around(ChatValues("a\x1b]0;t\x07b"))
    async with app.run_test(size=(80, 24)) as pilot:
        assert app.screen.query_one(TextArea).text == "ab"
        app.screen.query_one(TextArea).load_text("two\nlines")
        await pilot.press("ctrl+s")
        assert app.results[0].system == "two\nlines"
