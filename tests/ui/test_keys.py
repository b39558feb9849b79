"""Keys from the configuration, and the words for them."""

from __future__ import annotations

from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, TextArea

from flashllm.errors import ConfigError
from flashllm.settings.file import Said
from flashllm.ui.commands.bindings import EVERYWHERE_BINDINGS, PLACES
from flashllm.ui.commands.keys import (
    bindings_in,
    format_key,
    give_way,
    read_keymap,
    reworded,
    with_keys,
)
from flashllm.ui.screens.help import key_section
from flashllm.ui.widgets.footer import KeyFooter, Shown
from tests.support.screens import until

PLACE = "/home/u/.config/flashllm/config.toml:3"


def read(changes: dict[str, str]) -> dict[str, str]:
    return read_keymap({name: Said(keys, PLACE) for name, keys in changes.items()}, PLACES)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("ctrl+q", "Ctrl+Q"),
        ("escape,f1", "Esc or F1"),
        ("pageup", "PgUp"),
        ("question_mark", "?"),
        ("j", "j"),
        ("shift+tab", "Shift+Tab"),
        ("space", "Space"),
        ("ctrl+shift+up", "Ctrl+Shift+Up"),
        ("+", "+"),
    ],
)
def test_words(keys: str, words: str) -> None:
    assert format_key(keys) == words


def test_what_is_right_is_taken() -> None:
    changes = {"chat.stop": "ctrl+x, f9", "chat.edit": "x", "chat.help": "ctrl+l"}
    expected = {"chat.stop": "ctrl+x,f9", "chat.edit": "x", "chat.help": "ctrl+l"}
    assert read(changes) == expected
    assert read({}) == {}


def test_keys_that_write_nothing_are_taken_while_one_types() -> None:
    changes = {"chat.stop": "escape,ctrl+x", "chat.focus_transcript": "tab,f7"}
    assert read(changes) == changes


def test_pages_have_keys_of_their_own() -> None:
    changes = {"sessions.rename": "f2", "picker.convert": "x", "convert.start": "f4"}
    assert read(changes) == changes


def test_pages_that_ask_have_keys_of_their_own_too() -> None:
    changes = {"help.close": "x", "confirm.yes": "enter", "confirm.no": "f2", "tokens.close": "q"}
    assert read(changes) == changes


@pytest.mark.parametrize(
    ("said", "taken"),
    [("shift+ctrl+up", "ctrl+shift+up"), ("ctrl+X", "ctrl+x"), ("ctrl+/", "ctrl+slash")],
)
def test_keys_are_taken_as_textual_reports_them(said: str, taken: str) -> None:
    assert read({"chat.stop": said}) == {"chat.stop": taken}


def test_two_actions_may_swap_their_keys() -> None:
    assert read({"chat.help": "f2", "chat.io_panel": "f1"})


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("chat.stpo", "ctrl+x", "there is no such action; did you mean 'chat.stop'?"),
        ("chat.stop", "ctlr+x", "'ctlr+x' is no key; write it like ctrl+x"),
        ("chat.stop", "ctrl+", "'ctrl+' is no key"),
        ("chat.stop", "", "'nothing' is no key"),
        ("chat.stop", "ctrl+x,,f1", "'nothing' is no key"),
        ("chat.stop", "f99", "'f99' is no key"),
        ("chat.stop", "x", "'x' is a character that one types"),
        ("chat.stop", "question_mark", "is a character that one types"),
        ("chat.edit", "shift+e", "write the letter itself, like E"),
        ("chat.stop", "f1", "f1 is the key of chat.help already"),
        ("chat.stop", "ctrl+i", "'ctrl+i' is no key of its own: a terminal sends the same for Tab"),
        ("chat.edit", "f9,ctrl+M", "'ctrl+M' is no key of its own: a terminal sends the same for"),
        ("chat.stop", "ctrl+h", "a terminal sends the same for Backspace; take another"),
        ("chat.stop", "ctrl+[", "'ctrl+[' is no key of its own: a terminal sends the same for Esc"),
        ("chat.stop", "ctrl+left_square_bracket", "a terminal sends the same for Esc"),
        ("chat.stop", "enter", "enter is the key of chat.send already"),
        ("chat.edit", "j", "j is the key of chat.select_later already"),
        ("chat.edit", "ctrl+q", "ctrl+q is the key of chat.quit already"),
        ("chat.\x1b[2Jx", "f9", "'chat.x'"),
        ("sessions.rename", "x", "'x' is a character that one types"),
        ("picker.open", "o", "'o' is a character that one types"),
        ("picker.convert", "slash", "slash is the key of picker.filter already"),
        ("picker.convert", "/", "slash is the key of picker.filter already"),
        ("tokens.close", "h", "h is the key of tokens.previous already"),
        ("settings.apply", "ctrl+q", "ctrl+q is the key of chat.quit already"),
        ("chat.quit", "ctrl+s", "ctrl+s is the key of settings.apply already"),
    ],
)
def test_what_is_wrong_is_refused_with_the_line_and_the_key(
    name: str, keys: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read({name: keys})
    message = str(caught.value)
    assert message.startswith(f"{PLACE}: [keys] '")
    assert words in message
    assert "\x1b" not in message


def test_help_has_the_changed_keys() -> None:
    section = key_section(
        "Keys", with_keys(bindings_in(EVERYWHERE_BINDINGS), {"chat.help": "ctrl+l,f12"})
    )
    rows = {words: keys for keys, words in section.rows}
    assert rows["help"] == "Ctrl+L or F12"
    assert rows["quit"] == "Ctrl+Q"


def test_sentences_name_the_changed_keys() -> None:
    bindings = bindings_in(EVERYWHERE_BINDINGS)
    keymap = {"chat.quit": "ctrl+x", "chat.stop": "f9,f10"}
    text = "Esc stops; Ctrl+Q leaves, not Ctrl+QQ; F1 helps; Escape"
    expected = "F9 or F10 stops; Ctrl+X leaves, not Ctrl+QQ; F1 helps; Escape"
    assert reworded(text, bindings, keymap) == expected
    assert reworded(text, bindings, {}) == text


class Small(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f9", "note('nine')", "Nine", id="chat.nine"),
        Binding("f8", "note('eight')", "Eight", id="chat.eight"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def compose(self) -> ComposeResult:
        yield TextArea()
        yield Footer()

    def action_note(self, text: str) -> None:
        self.noted.append(text)


async def test_the_texts_own_keys_give_way_to_changed_ones() -> None:
    app = Small()
    async with app.run_test() as pilot:
        area = app.query_one(TextArea)
        area.focus()
        keymap = {"chat.nine": "ctrl+k"}
        app.set_keymap(keymap)
        await pilot.press("ctrl+k")
        assert app.noted == []
        give_way(area, with_keys(bindings_in(Small.BINDINGS), keymap))
        await pilot.press("ctrl+k", "f9", "f8")
        assert app.noted == ["nine", "eight"]


class Counted(KeyFooter):
    asked = 0

    def renew(self) -> None:
        super().renew()
        self.asked += 1


class Working(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f9", "stop", "Stop")]
    works = False

    def compose(self) -> ComposeResult:
        yield Counted()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        del parameters
        return None if action == "stop" and not self.works else True


@pytest.mark.usefixtures("footer")
async def test_the_line_of_keys_is_drawn_anew_only_where_it_would_differ() -> None:
    app = Working()
    async with app.run_test() as pilot:
        line = app.query_one(Counted)
        await until(pilot, lambda: line.asked > 0)

        async def drawn_where(works: bool) -> list[Shown]:
            asked, app.works = line.asked, works
            app.refresh_bindings()
            await until(pilot, lambda: line.asked > asked)
            return line.shown

        before = await drawn_where(works=False)
        assert [enabled for _, _, enabled, _ in before] == [False]
        assert await drawn_where(works=False) is before
        working = await drawn_where(works=True)
        assert [enabled for _, _, enabled, _ in working] == [True]
        assert await drawn_where(works=True) is working
