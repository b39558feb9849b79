"""The field in which a message is written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult, Location

from flashllm.ui.commands.bindings import PROMPT_BINDINGS
from flashllm.ui.prompt.history import InputHistory
from flashllm.untrusted.terminal import sanitize

SHOWN_CHARACTERS = 10_000
SHOWN_LINES = 200
"""A longer text is replaced by a placeholder, since the widget wraps its whole text at each key."""
AT_ONCE_CHARACTERS = 50_000
"""A longer paste is made harmless on another thread."""
EDITING = "another version of an earlier message; Esc: leave it as it was"


class Prompt(TextArea):
    """Grows with its text; Enter sends, Shift+Enter and Ctrl+J break the line."""

    BINDINGS: ClassVar[list[BindingType]] = [*PROMPT_BINDINGS]

    class Submitted(Message):
        """The user wants to send the text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, inputs: InputHistory | None = None, placeholder: str = "") -> None:
        super().__init__(compact=False, highlight_cursor_line=False, placeholder=placeholder)
        self.inputs = inputs or InputHistory()
        self.editing: int | None = None
        """The question of which another version is being written."""
        self._draft = ""
        self._held_back: dict[str, str] = {}
        self._pasting = asyncio.Lock()

    @property
    def whole_text(self) -> str:
        """The text to send, with placeholders replaced by what they stand for."""
        text = self.text
        for words, held_back in self._held_back.items():
            text = text.replace(words, held_back)
        return text

    def edit(self, edit: Edit) -> EditResult:
        """A long paste's placeholder is deleted as a whole; text typed inside goes after it.

        A changed placeholder would be sent literally.
        """
        begin, end = self._around(edit.top)[0], self._around(edit.bottom)[1]
        if edit.top == edit.bottom:
            begin = end
        if (begin, end) != (edit.top, edit.bottom):
            edit = replace(edit, from_location=begin, to_location=end)
        return super().edit(edit)

    def put_text(self, text: str) -> None:
        """Replaces everything by sanitized text; a placeholder is shown for what is too long."""
        self._held_back.clear()
        self.load_text(self._shown(harmless(text)))
        self.move_cursor(self.document.end)

    def action_submit(self) -> None:
        """Submits the text; it stays in the prompt until `take`."""
        self.post_message(self.Submitted(self.whole_text))

    def take(self) -> str:
        """The text has been sent: it is remembered, and the field is empty."""
        text = self.whole_text
        self.inputs.add(text)
        self._held_back.clear()
        self.clear()
        return text

    def begin_edit(self, turn_id: int, text: str) -> None:
        """Another version of a question is written; what was here before comes back after it."""
        if self.editing is None:
            self._draft = self.whole_text if self.whole_text != text else ""
        self.editing = turn_id
        self.put_text(text)
        self.border_title = EDITING
        self.refresh_bindings()

    def end_edit(self) -> int | None:
        """Which question was edited, if one was; the field holds again what it held before."""
        turn_id, self.editing = self.editing, None
        if turn_id is not None:
            self.border_title = None
            self.put_text(self._draft)
            self.refresh_bindings()
        return turn_id

    def action_break_line(self) -> None:
        """Breaks the line at the cursor."""
        self._put("\n")

    def action_earlier(self) -> None:
        """A line up; from the first one to what was sent before."""
        if not self.cursor_at_first_line:
            self.action_cursor_up()
        elif (text := self.inputs.earlier(self.whole_text)) is not None:
            self.put_text(text)

    def action_later(self) -> None:
        """A line down; from the last one to what was sent after."""
        if not self.cursor_at_last_line:
            self.action_cursor_down()
        elif (text := self.inputs.later()) is not None:
            self.put_text(text)

    async def _on_key(self, event: events.Key) -> None:
        # Bindings are looked up here and not left to the application, which gets a key so late
        # that letters typed after it would be in the text already.
        if event.is_printable:
            return
        active = self.screen.active_bindings.get(event.key)
        if active is not None and active.node is self:
            event.prevent_default()
            event.stop()
            await self.run_action(active.binding.action)

    async def _on_paste(self, event: events.Paste) -> None:
        # Pasted text may hold escape sequences, which the widget would pass to the terminal.
        event.prevent_default()
        event.stop()
        if len(event.text) < AT_ONCE_CHARACTERS:
            self._put(self._shown(harmless(event.text)))
        else:
            self.run_worker(self._paste_long(event.text), exit_on_error=False)

    async def _paste_long(self, text: str) -> None:
        async with self._pasting:
            self._put(self._shown(await asyncio.to_thread(harmless, text)))

    def _shown(self, text: str) -> str:
        if len(text) <= SHOWN_CHARACTERS and text.count("\n") < SHOWN_LINES:
            return text
        words = f"[text {len(self._held_back) + 1}: {len(text):,} characters]"
        self._held_back[words] = text
        return words

    def _around(self, place: Location) -> tuple[Location, Location]:
        """Where such words begin and end, if the place is amid them."""
        row, column = place
        line = self.document.get_line(row)
        for words in self._held_back:
            # Words that the place is amid end behind it, and begin no further before it.
            begin = line.find(words, max(column - len(words) + 1, 0), column + len(words) - 1)
            if 0 <= begin < column:
                return (row, begin), (row, begin + len(words))
        return place, place

    def _put(self, text: str) -> None:
        self.replace(text, *self.selection, maintain_selection_offset=False)


def harmless(text: str) -> str:
    """Pasted text without escape sequences, with one kind of line end."""
    return sanitize(text.replace("\r\n", "\n").replace("\r", "\n"))
