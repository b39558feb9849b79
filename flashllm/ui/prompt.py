"""The field in which a message is written."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from flashllm.sanitize import sanitize
from flashllm.ui.bindings import PROMPT_BINDINGS


class Prompt(TextArea):
    """Grows with its text; Enter sends, Shift+Enter and Ctrl+J break the line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        binding
        for binding in PROMPT_BINDINGS
        if isinstance(binding, Binding) and not binding.action.endswith(("earlier", "later"))
    ]

    class Submitted(Message):
        """The user wants to send the text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def action_submit(self) -> None:
        """Offers the text; it stays until it is taken."""
        self.post_message(self.Submitted(self.text))

    def action_break_line(self) -> None:
        """Breaks the line at the cursor."""
        self._put("\n")

    async def _on_key(self, event: events.Key) -> None:
        # Here and not as priority bindings, which would overtake the letters typed before.
        actions = {
            "enter": self.action_submit,
            "ctrl+j": self.action_break_line,
            "shift+enter": self.action_break_line,
        }
        if event.key in actions:
            event.prevent_default()
            event.stop()
            actions[event.key]()

    async def _on_paste(self, event: events.Paste) -> None:
        # Pasted text may hold escape sequences, which the widget would pass to the terminal.
        event.prevent_default()
        event.stop()
        self._put(sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n")))

    def _put(self, text: str) -> None:
        self.replace(text, *self.selection, maintain_selection_offset=False)
