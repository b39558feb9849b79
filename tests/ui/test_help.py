"""The page of help: what it lists, how it is laid out, that it closes."""

from __future__ import annotations

import pytest
from textual.binding import Binding

from flashllm.ui.commands.table import COMMANDS
from flashllm.ui.screens.help import (
    MOUSE,
    NUMBERS,
    HelpScreen,
    HelpSection,
    help_pages,
    key_section,
)
from tests.support.screens import Around, shown, until


def rows_of(keymap: dict[str, str]) -> list[tuple[str, str]]:
    """All rows of all pages."""
    sections = [section for page in help_pages(keymap) for section in page.sections]
    return [row for section in sections for row in section.rows]


def test_several_keys_of_one_action_are_one_row() -> None:
    section = key_section(
        "Keys",
        [
            Binding("tab", "go", "Messages"),
            Binding("shift+tab", "go", "Messages"),
            Binding("f9", "secret"),
            Binding("f8", "x", "Short", tooltip="Long words"),
        ],
    )
    assert section.rows == (("Tab or Shift+Tab", "messages"), ("F8", "long words"))


def test_every_command_and_number_is_there() -> None:
    rows = [name for name, _ in rows_of({})]
    for command in COMMANDS:
        assert command.usage in rows
    for name, _ in (*NUMBERS, *MOUSE):
        assert name in rows
    assert "Ctrl+Q" in rows
    assert ("F2", "I/O") in rows_of({})


def test_changed_keys_are_there_and_the_old_ones_not() -> None:
    rows = rows_of({"chat.quit": "ctrl+x", "chat.new_conversation": "f12"})
    assert ("Ctrl+X", "quit") in rows
    assert ("Ctrl+X", "leaves; everything is kept") in rows
    assert not [row for row in rows if "Ctrl+Q" in row[0] + row[1]]
    assert ("F4", "conversations; F12 begins a new one") in rows


def test_a_narrow_page_gives_explanations_their_own_lines() -> None:
    section = HelpSection("T", (("one", "what one does"), ("three", "x")))
    assert str(section.text(80)) == "T\none    what one does\nthree  x"
    assert str(section.text(30)) == "T\none\n  what one does\nthree\n  x"


async def test_the_first_page_is_one_screen() -> None:
    app = Around(lambda: HelpScreen())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "tokens of the context in use" in shown(app))
        scroll = app.screen.query_one("#help")
        assert scroll.max_scroll_y == 0
        for word in ("Enter", "Esc", "F5", "Ctrl+Q", "/file", "MB/tok"):
            assert word in shown(app)


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
async def test_pages_are_turned_and_scrolled(size: tuple[int, int]) -> None:
    app = Around(lambda: HelpScreen())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "[start]" in shown(app))
        for key, name in (("right", "[keys]"), ("tab", "[commands]"), ("left", "[keys]")):
            await pilot.press(key)
            await until(pilot, lambda name=name: name in shown(app))
        await pilot.press("end")
        await until(pilot, lambda: "drag" in shown(app))
        await pilot.press("shift+tab")
        await until(pilot, lambda: "[start]" in shown(app))
        assert "Enter" in shown(app)  # from the beginning, wherever the other page was left
        await pilot.press("left", "escape")
        assert app.results == [None]
