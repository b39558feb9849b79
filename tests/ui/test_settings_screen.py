"""The page of settings: what is wrong is said while one types, and nothing wrong is applied."""

from __future__ import annotations

from typing import Any

import pytest
from textual import events
from textual.widgets import Input, TextArea

from flashllm.engine.sampling import Sampling
from flashllm.ui.commands.setting_values import ChatValues
from flashllm.ui.screens.settings import SettingsScreen
from tests.support.screens import Around, shown, until

THEMES = ("nord", "textual-dark", "textual-light")


def around(values: ChatValues | None = None, **options: Any) -> Around:
    return Around(lambda: SettingsScreen(values or ChatValues(), THEMES, **options))


def field(app: Around, name: str) -> Input:
    return app.screen.query_one(f"#{name} Input", Input)


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
async def test_values_are_changed_and_applied(size: tuple[int, int]) -> None:
    app = around(ChatValues("Be brief.", Sampling(seed=7)))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "System prompt" in shown(app)
        assert "Be brief." in shown(app)
        await pilot.press("end", "x", "tab", *"0.7")
        field(app, "temp").value = "0.7"
        field(app, "max-tokens").value = "99"
        await pilot.press("ctrl+s")
        expected = ChatValues("Be brief.x", Sampling(0.7, seed=7), 99, "textual-dark")
        assert app.results == [expected]


async def test_enter_in_a_field_applies() -> None:
    app = around(focus="temp")
    async with app.run_test() as pilot:
        await pilot.press("backspace", "1", "enter")
        assert app.results == [ChatValues(sampling=Sampling(1.0))]


async def test_every_field_can_be_reached_on_a_small_terminal() -> None:
    app = around()
    async with app.run_test(size=(40, 12)) as pilot:
        seen = []
        for _ in range(13):
            await pilot.pause()
            focused = app.focused
            assert focused is not None
            seen.append(next(node.id for node in focused.ancestors if node.id))
            assert focused.region.bottom <= 12
            assert focused.region.y >= 0
            await pilot.press("tab")
        assert seen == [
            "system", "temp", "top-k", "top-p", "min-p", "repetition-penalty", "seed", "max-tokens",
            "think", "effort", "memory", "ctx-size", "theme",
        ]  # fmt: skip
        await pilot.press("shift+tab")
        assert app.focused is not None
        assert app.focused is field(app, "theme")


async def test_what_is_wrong_is_said_while_one_types_and_not_applied() -> None:
    app = around(focus="top_p")
    async with app.run_test(size=(80, 40)) as pilot:
        field(app, "top-p").value = "1.5"
        await until(pilot, lambda: "top_p: '1.5' is out of range; expected above 0" in shown(app))
        await pilot.press("ctrl+s")
        assert app.results == []
        field(app, "top-p").value = "0.5"
        await until(pilot, lambda: "expected above 0" not in shown(app))
        await pilot.press("ctrl+s")
        assert app.results == [ChatValues(sampling=Sampling(top_p=0.5))]


async def test_the_first_wrong_field_gets_the_focus() -> None:
    app = around()
    async with app.run_test(size=(80, 24)) as pilot:
        field(app, "seed").value = "x"
        field(app, "max-tokens").value = "0"
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert app.focused is field(app, "seed")


async def test_a_theme_is_shown_while_it_is_typed_and_taken_back() -> None:
    app = around(focus="theme")
    async with app.run_test(size=(80, 24)) as pilot:
        field(app, "theme").value = "nord"
        await until(pilot, lambda: app.theme == "nord")
        field(app, "theme").value = "nor"
        await until(pilot, lambda: "there is no theme 'nor'; did you mean 'nord'?" in shown(app))
        assert app.theme == "nord"
        await pilot.press("escape")
        assert app.theme == "textual-dark"
        assert app.results == [None]


async def test_what_is_pasted_does_not_act_on_the_terminal() -> None:
    app = around(focus="theme")
    async with app.run_test(size=(80, 40)) as pilot:
        theme, system = field(app, "theme"), app.screen.query_one(TextArea)
        theme.value = ""
        theme.post_message(events.Paste("no\x1b]52;c;eA==\x07r\x1b[2J\u202ed"))
        system.post_message(events.Paste("Be\x1b]0;t\x07 brief.\r\nAlways\u202e."))
        await until(pilot, lambda: theme.value != "" and system.text != "")
        assert theme.value == "nord"
        assert system.text == "Be brief.\nAlways."


async def test_a_system_prompt_is_harmless() -> None:
    app = around(ChatValues("a\x1b]0;t\x07b"))
    async with app.run_test(size=(80, 24)) as pilot:
        assert app.screen.query_one(TextArea).text == "ab"
        app.screen.query_one(TextArea).load_text("two\nlines")
        await pilot.press("ctrl+s")
        assert app.results[0].system == "two\nlines"
