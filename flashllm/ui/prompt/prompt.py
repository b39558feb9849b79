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
from flashllm.ui.commands.table import Suggestion
from flashllm.ui.prompt.draft import Draft
from flashllm.ui.prompt.history import InputHistory
from flashllm.ui.prompt.suggestions import Suggestions
from flashllm.ui.prompt.waiting import WaitingMessages
from flashllm.untrusted.terminal import sanitize

SHOWN_CHARACTERS = 10_000
SHOWN_LINES = 200
"""A longer text is replaced by a placeholder, since the widget wraps its whole text at each key."""
AT_ONCE_CHARACTERS = 50_000
"""A longer paste is made harmless on another thread."""
ADDS_FILE = "/file "
EDITING = "another version of an earlier message; Esc: leave it as it was"


class Prompt(TextArea):
    """Grows with its text; Enter sends, Shift+Enter and Ctrl+J break the line.

    Above it are `suggestions`, through which the arrows go while a command is typed, and messages
    that are `waiting`, of which an arrow up in an empty prompt takes the last one back.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*PROMPT_BINDINGS]

    class Submitted(Message):
        """The user wants to send the text."""

        def __init__(self, draft: Draft) -> None:
            super().__init__()
            self.draft = draft

    def __init__(
        self,
        inputs: InputHistory,
        suggestions: Suggestions,
        waiting: WaitingMessages,
        placeholder: str = "",
    ) -> None:
        super().__init__(compact=False, highlight_cursor_line=False, placeholder=placeholder)
        self.inputs = inputs
        self._suggestions = suggestions
        self._waiting = waiting
        self.editing: int | None = None
        """The question of which another version is being written."""
        self._draft = ""
        self._held_back: dict[str, str] = {}
        self._pasting = asyncio.Lock()

    @property
    def whole_text(self) -> str:
        """The text to send, with placeholders replaced by what they stand for."""
        return self.draft.text

    @property
    def draft(self) -> Draft:
        """What stands here, as it can be put here again."""
        return Draft(self.text, dict(self._held_back), self.editing)

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

    @property
    def command_line(self) -> str:
        """What may be a command: all of the text, or behind a message the line that adds a file."""
        return command_in(self.text)

    def put_command(self, line: str) -> None:
        """Replaces the command that is being typed; the message before it stays."""
        before = self.text.removesuffix(self.command_line)
        if not before:
            self.put_text(line)
            return
        self.load_text(before + line)
        self.move_cursor(self.document.end)

    def put_draft(self, draft: Draft) -> None:
        """Replaces everything by what was written before."""
        if draft.edited is not None:
            self.begin_edit(draft.edited, "")
        self._held_back = dict(draft.held_back)
        self.load_text(draft.shown)
        self.move_cursor(self.document.end)

    def attach(self, name: str, text: str) -> None:
        """Puts a text where the cursor is, behind words with a name, since nobody edits it here."""
        words = self._words_for(f"{name}: {len(text):,} characters")
        self._held_back[words] = text
        self._put(words)

    def take_back(self, index: int = -1) -> bool:
        """Puts a message that waits here, in place of nothing; False where that cannot be."""
        if self.text or self.editing is not None:
            return False
        draft = self._waiting.take(index)
        if draft is not None:
            self.put_draft(draft)
        return draft is not None

    def action_submit(self) -> None:
        """Submits the text, which stays in the prompt until `take`; or takes a suggestion."""
        suggestion = self._suggestions.chosen(self.command_line)
        if suggestion is None:
            self.post_message(self.Submitted(self.draft))
        else:
            self.take_suggestion(suggestion)

    def take_suggestion(self, suggestion: Suggestion) -> None:
        """Puts a suggestion in place of what was typed of it, and submits it if it is whole."""
        self.put_command(suggestion.line)
        if suggestion.is_whole:
            self.post_message(self.Submitted(self.draft))

    def take(self, draft: Draft | None = None) -> None:
        """A text has been sent: it is remembered, and no longer here; what was typed since is."""
        draft = draft or self.draft
        self.inputs.add(draft.text)
        more = self.text.removeprefix(draft.shown) if self.text.startswith(draft.shown) else ""
        for words in draft.held_back:
            self._held_back.pop(words, None)
        self.load_text(more)
        self.move_cursor(self.document.end)

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
        """A suggestion up, or a line; from the first one to what waits, and was sent before."""
        if self._suggestions.step(-1, self.command_line):
            return
        if not self.cursor_at_first_line:
            self.action_cursor_up()
        elif not self.take_back() and (text := self.inputs.earlier(self.whole_text)) is not None:
            self._recall(text)

    def action_later(self) -> None:
        """A suggestion down, or a line; from the last one to what was sent after."""
        if self._suggestions.step(1, self.command_line):
            return
        if not self.cursor_at_last_line:
            self.action_cursor_down()
        elif (text := self.inputs.later()) is not None:
            self._recall(text)

    def _recall(self, text: str) -> None:
        # The arrows go on through what was sent, also where that was a command.
        self._suggestions.recalled = text
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

    def _words_for(self, what: str) -> str:
        """`[what]`, with a number where the same words stand for something else already."""
        words, number = f"[{what}]", 1
        while words in self._held_back or words in self.text:
            number += 1
            words = f"[{what}, {number}]"
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


def command_in(shown: str) -> str:
    """What may be a command in a text: all of it, or its last line where that adds a file."""
    last = shown.rpartition("\n")[2]
    return last if last.startswith(ADDS_FILE) else shown


def harmless(text: str) -> str:
    """Pasted text without escape sequences, with one kind of line end."""
    return sanitize(text.replace("\r\n", "\n").replace("\r", "\n"))
