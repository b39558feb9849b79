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
    help_sections,
    key_section,
)
from tests.support.screens import Around, shown, until


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
    rows = [name for section in help_sections({}) for name, _ in section.rows]
    for command in COMMANDS:
        assert command.usage in rows
    for name, _ in (*NUMBERS, *MOUSE):
        assert name in rows
    assert "Ctrl+Q" in rows
    assert ("F2", "I/O") in [row for section in help_sections({}) for row in section.rows]


def test_changed_keys_are_there_and_the_old_ones_not() -> None:
    rows = dict(row for section in help_sections({"chat.quit": "ctrl+x"}) for row in section.rows)
    assert rows["Ctrl+X"] == "quit"
    assert "Ctrl+Q" not in rows


def test_a_narrow_page_gives_explanations_their_own_lines() -> None:
    section = HelpSection("T", (("one", "what one does"), ("three", "x")))
    assert str(section.text(80)) == "T\none    what one does\nthree  x"
    assert str(section.text(30)) == "T\none\n  what one does\nthree\n  x"


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
async def test_it_scrolls_and_closes(size: tuple[int, int]) -> None:
    app = Around(lambda: HelpScreen())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "send" in shown(app))
        before = shown(app)
        await pilot.press("end")
        await until(pilot, lambda: "drag" in shown(app))
        assert shown(app) != before
        await pilot.press("escape")
        assert app.results == [None]
