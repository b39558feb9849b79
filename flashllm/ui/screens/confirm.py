"""A question with yes and no, before something is lost."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Static

from flashllm.ui.commands.bindings import CONFIRM_BINDINGS
from flashllm.ui.commands.keys import format_page_text
from flashllm.ui.screens.page import Page
from flashllm.untrusted.terminal import sanitize


class ConfirmScreen(Page[bool]):
    """True for yes; no is what Enter means at first."""

    BINDINGS: ClassVar[list[BindingType]] = [*CONFIRM_BINDINGS]
    DEFAULT_CSS = """
    ConfirmScreen {
        align: center middle;
    }
    ConfirmScreen > Vertical {
        width: 60;
        max-width: 95%;
        height: auto;
        padding: 0 1;
        border: round $border;
        background: $surface;
    }
    ConfirmScreen Static {
        height: auto;
        max-height: 8;
    }
    ConfirmScreen Horizontal {
        height: auto;
        align-horizontal: right;
    }
    ConfirmScreen Button {
        margin: 0 0 0 1;
        min-width: 10;
    }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = sanitize(question)

    def compose(self) -> ComposeResult:
        """The question and two buttons."""
        with Vertical():
            yield Static(self._question, markup=False)
            with Horizontal():
                yield Button(self._words("No (n)"), id="no", compact=True)
                yield Button(self._words("Yes (y)"), id="yes", variant="error", compact=True)

    def _words(self, text: str) -> Content:
        return Content(format_page_text(self, text))  # a key may be what markup begins with

    @on(Button.Pressed)
    def take(self, event: Button.Pressed) -> None:
        """A button is an answer."""
        self.action_answer(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Closes."""
        self.dismiss(yes)
