"""What one can do with a message: choose, edit, delete, copy it, go through its versions."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.conversations.tree import can_go_on
from flashllm.untrusted.terminal import sanitize, sanitize_line

if TYPE_CHECKING:
    from flashllm.conversations.tree import Turn
    from flashllm.ui.app import ChatApp

CLIPBOARD_BYTES_MAX = 70_000
"""Terminals ignore more than about 100 kB at once, base64 included."""
EDITING = "another version of an earlier message; Esc: leave it as it was"


class TurnActions:
    """Acts on the selected turn, or on one that is counted from the end: 1 is the last one."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self.editing: int | None = None
        """The question of which another version is in the prompt."""
        self._draft = ""
        self._copied = ""
        self._block: tuple[int, int] = (0, 0)

    def chosen(self, number: int, role: str = "") -> Turn | None:
        """The selected turn where `number` is 0, else the last ones of that role, or of any."""
        shown = self._app.shown
        selected = shown.transcript.selected
        if number == 0 and selected is not None:
            return shown.conversation.turns.get(selected)
        turns = [turn for turn in shown.conversation.path() if role in ("", turn.role)]
        number = number or 1
        if 1 <= number <= len(turns):
            return turns[-number]
        self._app.show_hint("there is no such message" if turns else "there is no message yet")
        return None

    def edit(self, number: int) -> None:
        """Takes a question into the prompt."""
        turn = self.chosen(number, "user")
        if turn is None or self._is_busy():
            return
        if turn.role == "assistant":
            turn = self._app.shown.conversation.turns[turn.parent or 0]
        self.begin_edit(turn.id, turn.text)

    def begin_edit(self, turn_id: int, text: str) -> None:
        """Another version of a question is written; what was in the prompt comes back after it."""
        prompt = self._app.prompt
        if self.editing is None:
            self._draft = prompt.whole_text if prompt.whole_text != text else ""
        self.editing = turn_id
        prompt.put_text(text)
        prompt.border_title = EDITING
        self._app.action_focus_prompt()
        self._app.refresh_bindings()

    def end_edit(self) -> int | None:
        """Which question was edited, if one was; the prompt holds again what it held before."""
        turn_id, self.editing = self.editing, None
        if turn_id is not None:
            self._app.prompt.border_title = None
            self._app.prompt.put_text(self._draft)
            self._app.refresh_bindings()
        return turn_id

    async def regenerate(self) -> None:
        """Answers the last question anew."""
        if self._app.shown.conversation.leaf is None:
            self._app.show_hint("there is no question yet")
        elif not self._is_hindered():
            await self._app.answering.regenerate()

    async def go_on(self) -> None:
        """Goes on with the last answer."""
        conversation = self._app.shown.conversation
        turn = self.chosen(0) if conversation.leaf is not None else None
        if turn is None or turn.id != conversation.leaf or not can_go_on(turn):
            self._app.show_hint("only a last answer that was stopped can go on")
        elif not self._is_hindered():
            await self._app.answering.go_on(turn)

    def delete(self, number: int) -> None:
        """Deletes a message and all that follows it, after asking."""
        turn = self.chosen(number)
        if turn is None or self._is_busy():
            return

        async def delete(yes: bool | None) -> None:
            # Meanwhile a question that waited for the model may have been sent.
            turns = self._app.shown.conversation.turns
            if yes and turn.id in turns and not self._is_busy():
                await self._app.shown.remove(turn.id)
                if self.editing not in turns:
                    self.end_edit()
                self._app.check_context()

        from flashllm.ui.screens.confirm import ConfirmScreen  # late, as all pages

        begin = sanitize_line(turn.text[:200])[:60]
        what = "question" if turn.role == "user" else "answer"
        words = f"Delete the {what} “{begin}” and all that follows it?"
        self._app.push_screen(ConfirmScreen(words), delete)

    def copy(self, number: int) -> None:
        """Copies a message; the second time into a file."""
        turn = self.chosen(number, "assistant")
        if turn is not None:
            self.copy_text(sanitize(turn.text).strip())

    def code(self, number: int) -> None:
        """Copies the next block of code of a message, or a given one of the last answer."""
        turn = self.chosen(0 if number == 0 else 1, "assistant")
        if turn is None:
            return
        blocks = code_blocks(sanitize(turn.text))
        if not 0 <= number <= len(blocks) or not blocks:
            self._app.show_hint(f"there is no such code; the answer has {len(blocks)} blocks")
            return
        last_turn, last = self._block
        index = number - 1 if number else (last + 1 if last_turn == turn.id else 0) % len(blocks)
        self._block = (turn.id, index)
        self.copy_text(blocks[index], f"code block {index + 1} of {len(blocks)}, ")

    def copy_text(self, text: str, what: str = "") -> None:
        """To the clipboard, through the terminal; into a file if it is too long, or asked again."""
        size = f"{what}{len(text):,} characters"
        if text == self._copied or len(text.encode()) > CLIPBOARD_BYTES_MAX:
            self._copied = ""
            self._app.show_hint(_written(text, size))
            return
        self._app.copy_to_clipboard(text)
        self._copied = text
        self._app.show_hint(f"copied {size}; once more writes a file")

    async def branch(self, step: int) -> None:
        """Shows another version of the selected message, or of the last one that has several."""
        shown = self._app.shown
        conversation, selected = shown.conversation, shown.transcript.selected
        turns = [turn.id for turn in conversation.path()]
        several = [turn for turn in turns if len(conversation.siblings(turn)) > 1]
        turn = selected if selected is not None else several[-1] if several else None
        siblings = conversation.siblings(turn) if turn is not None else []
        if turn is None or len(siblings) < 2:
            self._app.show_hint("there is one version only; e edits, r answers once more")
        elif not self._is_busy():
            place = siblings.index(turn) + step
            await shown.choose(siblings[place % len(siblings)])
            self._app.check_context()

    def _is_hindered(self) -> bool:
        """Whether nothing can be asked now, which is said then."""
        reason_not_ready = self._app.answering.reason_not_ready()
        if reason_not_ready:
            self._app.show_hint(reason_not_ready)
        return bool(reason_not_ready)

    def _is_busy(self) -> bool:
        """Whether an answer is being written, which is said then."""
        if self._app.activity.is_answering:
            self._app.show_hint(self._app.answering.reason_not_ready())
        return self._app.activity.is_answering


def code_blocks(markdown: str) -> list[str]:
    """The code in a text, block by block."""
    from flashllm.ui.transcript.markdown import make_parser

    kinds = ("fence", "code_block")
    return [token.content for token in make_parser().parse(markdown) if token.type in kinds]


def _written(text: str, size: str) -> str:
    """Writes a file that is nobody else's; says where it is, or why it is not."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="flashllm-", suffix=".md")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return f"wrote {size} to {Path(name)}"
