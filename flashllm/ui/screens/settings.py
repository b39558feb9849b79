"""System prompt, sampling, length and theme on one page, checked while one types."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static, TextArea

from flashllm.errors import UsageError
from flashllm.ui.commands.bindings import SETTINGS_BINDINGS
from flashllm.ui.commands.keys import give_way, page_bindings
from flashllm.ui.commands.setting_values import SETTINGS, ChatValues, Setting
from flashllm.ui.prompt.prompt import harmless
from flashllm.ui.screens.page import Page
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.ui.widgets.line_input import LineInput
from flashllm.untrusted.terminal import sanitize, sanitize_line


class _Lines(TextArea):
    """Textual's, of which nothing that is pasted acts on the terminal."""

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.replace(harmless(event.text), *self.selection, maintain_selection_offset=False)


class _Field(Vertical):
    """A label, what is typed, and below it what the setting does or what is wrong."""

    def __init__(self, setting: Setting, text: str, themes: Sequence[str]) -> None:
        super().__init__(id=setting.name.replace("_", "-"))
        self.setting = setting
        self._text = text
        self._themes = themes

    def compose(self) -> ComposeResult:
        """The three parts."""
        label = Static(self.setting.label, classes="label", markup=False)
        if self.setting.name == "system":
            yield label
            yield _Lines(sanitize(self._text), tab_behavior="focus", compact=True)
        else:
            names = SuggestFromList(self._themes, case_sensitive=False)
            is_theme = self.setting.name == "theme"
            yield label
            yield LineInput(self._text, compact=True, suggester=names if is_theme else None)
        yield Static(self.setting.help, classes="explained", markup=False)

    @property
    def typed(self) -> str:
        """What stands there."""
        if self.setting.name == "system":
            return self.query_one(TextArea).text
        return self.query_one(Input).value

    def judge(self, wrong: str) -> None:
        """Shows what is wrong, or what the setting does."""
        self.set_class(bool(wrong), "wrong")
        words = wrong or self.setting.help
        self.query_one(".explained", Static).update(Content(sanitize_line(words)))

    def take_focus(self) -> None:
        """Goes there."""
        self.query_one("TextArea, Input").focus(scroll_visible=False)


class SettingsScreen(Page[ChatValues | None]):
    """The values, changed; None where nothing is to change. A theme is shown while it is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [*SETTINGS_BINDINGS]
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    SettingsScreen {
        align: center middle;
        background: $background 60%;
    }
    SettingsScreen > Vertical {
        width: 84;
        max-width: 100%;
        height: 100%;
        max-height: 36;
        border: round $border;
        background: $surface;
    }
    SettingsScreen VerticalScroll {
        height: 1fr;
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    SettingsScreen _Field {
        layout: grid;
        grid-size: 2;
        grid-columns: 20 1fr;
        grid-rows: auto;
        height: auto;
        margin-bottom: 1;
    }
    SettingsScreen #system .label, SettingsScreen TextArea, SettingsScreen .explained {
        column-span: 2;
    }
    SettingsScreen .label {
        text-style: bold;
    }
    SettingsScreen Input {
        width: 1fr;
        border: none;
        height: 1;
        padding: 0;
        background: $boost;
    }
    SettingsScreen TextArea {
        height: auto;
        max-height: 5;
    }
    SettingsScreen .explained {
        padding-left: 2;
        color: $text-muted;
    }
    SettingsScreen .wrong .explained {
        color: $text-error;
        text-style: bold;
    }
    """

    def __init__(
        self, values: ChatValues, themes: Sequence[str] = (), focus: str = "system"
    ) -> None:
        super().__init__()
        self._values = values
        self._themes = tuple(themes) or (values.theme,)
        self._first = focus

    def compose(self) -> ComposeResult:
        """All settings in the order of the table."""
        with Vertical() as box:
            box.border_title = "Settings"
            with VerticalScroll(can_focus=False):
                for setting in SETTINGS:
                    yield _Field(setting, self._values.text_of(setting.name), self._themes)
            yield KeyFooter()

    def on_mount(self) -> None:
        """Begins at the setting that was asked for."""
        # The arrows go through the fields, where the page would scroll with them too.
        give_way(self.query_one(VerticalScroll), page_bindings(self))
        next(
            field for field in self.query(_Field) if field.setting.name == self._first
        ).take_focus()

    @on(Input.Changed)
    @on(TextArea.Changed)
    def check(self, event: Input.Changed | TextArea.Changed) -> None:
        """Says at once what is wrong with what stands in a field."""
        for field in event.control.ancestors:
            if isinstance(field, _Field):
                self._read(field, self._values)
                if field.setting.name == "theme" and not field.has_class("wrong"):
                    self.app.theme = field.typed.strip().lower()

    def on_descendant_focus(self) -> None:
        """A field is seen whole, with its label."""
        for node in self.focused.ancestors if self.focused else ():
            if isinstance(node, _Field):
                self.call_after_refresh(node.scroll_visible, animate=False)

    @on(Input.Submitted)
    def action_apply(self) -> None:
        """Leaves with the values, or goes to the first field that is wrong."""
        values = self._values
        wrong: list[_Field] = []
        for field in self.query(_Field):
            read = self._read(field, values)
            values = read or values
            if read is None:
                wrong.append(field)
        if wrong:
            wrong[0].take_focus()
            self.app.bell()
        else:
            self.dismiss(values)

    def action_leave(self) -> None:
        """Everything stays as it was, the theme too."""
        self.app.theme = self._values.theme
        self.dismiss(None)

    def _read(self, field: _Field, values: ChatValues) -> ChatValues | None:
        if field.typed == self._values.text_of(field.setting.name):
            field.judge("")  # also a value that could not be typed, from elsewhere
            return values
        try:
            read = values.with_text(field.setting.name, field.typed, self._themes)
        except UsageError as error:
            field.judge(str(error))
            return None
        with contextlib.suppress(LookupError):
            field.judge("")
        return read
