"""System prompt, sampling, length and theme on one page, checked while one types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import set_cell_size
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static, TextArea

from flashllm.errors import UsageError
from flashllm.ui.commands.bindings import SETTINGS_BINDINGS
from flashllm.ui.commands.keys import give_way, page_bindings
from flashllm.ui.commands.setting_values import SETTINGS, ChatValues, Setting, find_setting
from flashllm.ui.prompt.prompt import harmless
from flashllm.ui.screens.page import Page
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.ui.widgets.line_input import LineInput
from flashllm.untrusted.terminal import sanitize, sanitize_line

_LABEL_COLUMNS, _VALUE_COLUMNS = 20, 22


class _Lines(TextArea):
    """Textual's, of which nothing that is pasted acts on the terminal."""

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.replace(harmless(event.text), *self.selection, maintain_selection_offset=False)


class _Rows(Static):
    """A line for each setting: its name, what is typed for it, and what it does."""

    class Picked(Message):
        """A line was clicked."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def show(self, texts: Sequence[str], wrong: Sequence[bool], chosen: int) -> None:
        """What is typed for each of `SETTINGS`, and which one is being changed."""
        lines = (
            _row(setting, text, is_wrong, place == chosen)
            for place, (setting, text, is_wrong) in enumerate(
                zip(SETTINGS, texts, wrong, strict=True)
            )
        )
        self.update(Content("\n").join(lines))

    def on_click(self, event: events.Click) -> None:
        """Goes to the line."""
        if 0 <= event.y < len(SETTINGS):
            self.post_message(self.Picked(event.y))


def _row(setting: Setting, text: str, is_wrong: bool, is_chosen: bool) -> Content:
    value = f"{set_cell_size(sanitize_line(text), _VALUE_COLUMNS)} "
    label = f"{set_cell_size(setting.label, _LABEL_COLUMNS)} "
    colour = "$text-error" if is_wrong else "$text-accent"
    row = Content.assemble((label, "bold"), (value, colour), (setting.help, "dim"))
    return row.stylize("on $primary-muted") if is_chosen else row


class SettingsScreen(Page[ChatValues | None]):
    """The values, changed; None where nothing is to change. A theme is shown while it is typed.

    One field for all settings of one line: with a field for each, the page took five times as much
    memory while it opened, and the heap keeps that.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*SETTINGS_BINDINGS]
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    SettingsScreen {
        align: center middle;
        background: $background 60%;
    }
    SettingsScreen > Vertical {
        width: 100;
        max-width: 100%;
        height: 20;
        max-height: 100%;
        border: round $border;
        background: $surface;
    }
    SettingsScreen VerticalScroll {
        height: 1fr;
        min-height: 2;
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    SettingsScreen _Rows {
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    SettingsScreen #explained {
        margin: 1 1 0 1;
        color: $text-muted;
    }
    SettingsScreen #explained.wrong {
        color: $text-error;
        text-style: bold;
    }
    SettingsScreen Input {
        border: none;
        height: 1;
        margin: 0 1;
        padding: 0;
        background: $boost;
    }
    SettingsScreen TextArea {
        height: auto;
        max-height: 5;
        margin: 0 1;
    }
    """

    def __init__(
        self, values: ChatValues, themes: Sequence[str] = (), focus: str = "system"
    ) -> None:
        super().__init__()
        self._values = values
        self._themes = tuple(themes) or (values.theme,)
        self._texts = [values.text_of(setting.name) for setting in SETTINGS]
        self._wrong = [""] * len(SETTINGS)
        """What is wrong with each of the texts."""
        self._place = SETTINGS.index(find_setting(focus))

    @property
    def setting(self) -> Setting:
        """The one that is being changed."""
        return SETTINGS[self._place]

    def compose(self) -> ComposeResult:
        """All settings in the order of the table, and below them what is typed for one."""
        with Vertical() as box:
            box.border_title = "Settings"
            with VerticalScroll(can_focus=False):
                yield _Rows()
            yield Static(id="explained", markup=False)
            yield LineInput(compact=True)
            yield _Lines(sanitize(self._values.system), tab_behavior="focus", compact=True)
            yield KeyFooter()

    def on_mount(self) -> None:
        """Begins at the setting that was asked for."""
        # The arrows go through the settings, where the page would scroll with them too.
        give_way(self.query_one(VerticalScroll), page_bindings(self))
        self._choose(self._place)

    def _choose(self, place: int) -> None:
        """Another setting is being changed; what was typed for the one before was kept."""
        self._place = place
        line, lines = self.query_one(LineInput), self.query_one(_Lines)
        line.display, lines.display = not self._has_lines, self._has_lines
        if not self._has_lines:
            is_theme = self.setting.name == "theme"
            names = SuggestFromList(self._themes, case_sensitive=False)
            line.suggester = names if is_theme else None
            with line.prevent(Input.Changed):
                line.value = self._texts[place]
            line.cursor_position = len(line.value)
        self.set_focus(lines if self._has_lines else line, scroll_visible=False)
        self._show()

    @property
    def _has_lines(self) -> bool:
        return self.setting.name == "system"

    @on(Input.Changed)
    @on(TextArea.Changed)
    def keep(self) -> None:
        """Keeps what is typed, and says at once what is wrong with it."""
        typed = self.query_one(_Lines).text if self._has_lines else self.query_one(LineInput).value
        self._texts[self._place] = typed
        read = self._read(self._place, self._values)
        if read is not None and self.setting.name == "theme":
            self.app.theme = read.theme
        self._show()

    def _show(self) -> None:
        self.query_one(_Rows).show(self._texts, [bool(words) for words in self._wrong], self._place)
        wrong = self._wrong[self._place]
        explained = self.query_one("#explained", Static)
        explained.set_class(bool(wrong), "wrong")
        words = wrong or self.setting.help
        explained.update(Content(sanitize_line(f"{self.setting.label}: {words}")))
        # Later: how many lines the explanation takes says how many are left for the rows.
        self.call_after_refresh(self._scroll_to_chosen)

    def _scroll_to_chosen(self) -> None:
        row = Region(0, self._place, 1, 1)
        for rows in self.query(VerticalScroll):  # none where the page was left meanwhile
            rows.scroll_to_region(row, animate=False, x_axis=False)

    def action_move(self, by: int) -> None:
        """Goes to the next setting, or to the one before."""
        self.keep()
        self._choose((self._place + by) % len(SETTINGS))

    def on__rows_picked(self, event: _Rows.Picked) -> None:
        """Goes to the one that was clicked."""
        self.keep()
        self._choose(event.place)

    @on(Input.Submitted)
    def action_apply(self) -> None:
        """Leaves with the values, or goes to the first setting that is wrong."""
        self.keep()
        values, wrong = self._values, []
        for place in range(len(SETTINGS)):
            read = self._read(place, values)
            values = read or values
            if read is None:
                wrong.append(place)
        if wrong:
            self._choose(wrong[0])
            self.app.bell()
        else:
            self.dismiss(values)

    def action_leave(self) -> None:
        """Everything stays as it was, the theme too."""
        self.app.theme = self._values.theme
        self.dismiss(None)

    def _read(self, place: int, values: ChatValues) -> ChatValues | None:
        """The values with what is typed for one setting; None, and it is said, where it is wrong.

        What was not changed is right, also a value that could not be typed, from elsewhere.
        """
        name, text = SETTINGS[place].name, self._texts[place]
        self._wrong[place] = ""
        if text == self._values.text_of(name):
            return values
        try:
            return values.with_text(name, text, self._themes)
        except UsageError as error:
            self._wrong[place] = str(error)
            return None
