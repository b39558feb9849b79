"""What one can do with a message: choose, edit, delete, copy it, go through its versions."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.conversations.tree import can_go_on
from flashllm.tokenizer.reasoning import split
from flashllm.ui.chat import messages
from flashllm.untrusted.terminal import sanitize, sanitize_line

if TYPE_CHECKING:
    from flashllm.conversations.tree import Turn
    from flashllm.ui.chat.answering import Answering
    from flashllm.ui.chat.conversation_view import ConversationView
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.prompt.prompt import Prompt
    from flashllm.ui.widgets.owner import Owner

CLIPBOARD_BYTES_MAX = 70_000
"""Terminals ignore more than about 100 kB at once, base64 included."""


class TurnActions:
    """Acts on the selected turn, or on one that is counted from the end: 1 is the last one.

    `owner` gets `Hinted`, `CopyAsked`, `DeleteAsked`, `DrawAsked` and `PathChanged`.
    """

    def __init__(
        self,
        owner: Owner,
        view: ConversationView,
        prompt: Prompt,
        activity: Activity,
        answering: Answering,
    ) -> None:
        self._owner = owner
        self._view = view
        self._prompt = prompt
        self._activity = activity
        self._answering = answering
        self._copied = ""
        self._block: tuple[int, int] = (0, 0)

    def chosen(self, number: int, role: str = "") -> Turn | None:
        """The selected turn where `number` is 0, else the last ones of that role, or of any."""
        conversation, selected = self._view.conversation, self._view.transcript.selected
        if number == 0 and selected is not None:
            return conversation.turns.get(selected)
        turns = [turn for turn in conversation.path() if role in ("", turn.role)]
        number = number or 1
        if 1 <= number <= len(turns):
            return turns[-number]
        self._hint("there is no such message" if turns else "there is no message yet")
        return None

    def edit(self, number: int) -> None:
        """Takes a question into the prompt."""
        turn = self.chosen(number, "user")
        if turn is None or self._is_busy():
            return
        if turn.role == "assistant":
            turn = self._view.conversation.turns[turn.parent or 0]
        self.begin_edit(turn.id, turn.text)

    def begin_edit(self, turn_id: int, text: str) -> None:
        """Another version of a question is written; no message is selected meanwhile."""
        self._prompt.begin_edit(turn_id, text)
        self._view.transcript.select(None)
        self._prompt.focus()

    async def regenerate(self) -> None:
        """Answers the last question anew."""
        if self._view.conversation.leaf is None:
            self._hint("there is no question yet")
        elif self._is_hindered():
            return
        elif self._is_summary():
            self._hint("that is a summary; /compact makes another")
        elif self._answering.would_repeat():
            self._owner.post_message(messages.DrawAsked())
        else:
            await self._answering.regenerate()

    async def go_on(self) -> None:
        """Goes on with the last answer."""
        conversation = self._view.conversation
        turn = self.chosen(0) if conversation.leaf is not None else None
        if turn is None or turn.id != conversation.leaf or not can_go_on(turn):
            self._hint("only a last answer that was stopped can go on")
        elif not self._is_hindered():
            await self._answering.go_on(turn)

    def ask_to_delete(self, number: int) -> None:
        """Asks whether a message and all that follows it is to be deleted."""
        turn = self.chosen(number)
        if turn is None or self._is_busy():
            return
        begin = sanitize_line(turn.text[:200])[:60]
        what = "question" if turn.role == "user" else "answer"
        question = f"Delete the {what} “{begin}” and all that follows it?"
        self._owner.post_message(messages.DeleteAsked(turn.id, question))

    async def delete(self, turn_id: int) -> None:
        """Deletes a message and all that follows it."""
        # Since it was asked, a question that waited for the model may have been sent.
        turns = self._view.conversation.turns
        if turn_id in turns and not self._is_busy():
            await self._view.remove(turn_id)
            if self._prompt.editing not in turns:
                self._prompt.end_edit()
            self._owner.post_message(messages.PathChanged())

    def copy(self, number: int) -> None:
        """Copies a message; the second time into a file."""
        turn = self.chosen(number, "assistant")
        if turn is not None:
            thought, answer = split(sanitize(turn.text))
            self._copy_text((answer if answer.strip() else thought).strip())

    def code(self, number: int) -> None:
        """Copies the next block of code of a message, or a given one of the last answer."""
        turn = self.chosen(0 if number == 0 else 1, "assistant")
        if turn is None:
            return
        blocks = code_blocks(split(sanitize(turn.text))[1])
        if not 0 <= number <= len(blocks) or not blocks:
            self._hint(f"there is no such code; the answer has {len(blocks)} blocks")
            return
        last_turn, last = self._block
        index = number - 1 if number else (last + 1 if last_turn == turn.id else 0) % len(blocks)
        self._block = (turn.id, index)
        self._copy_text(blocks[index], f"code block {index + 1} of {len(blocks)}, ")

    def _copy_text(self, text: str, what: str = "") -> None:
        """To the clipboard, through the terminal; into a file if it is too long, or asked again."""
        size = f"{what}{len(text):,} characters"
        if text == self._copied or len(text.encode()) > CLIPBOARD_BYTES_MAX:
            self._copied = ""
            self._hint(_written(text, size))
            return
        self._owner.post_message(messages.CopyAsked(text))
        self._copied = text
        self._hint(f"copied {size}; once more writes a file")

    async def branch(self, step: int) -> None:
        """Shows another version of the selected message, or of the last one that has several."""
        conversation, selected = self._view.conversation, self._view.transcript.selected
        turns = [turn.id for turn in conversation.path()]
        several = [turn for turn in turns if len(conversation.siblings(turn)) > 1]
        turn = selected if selected is not None else several[-1] if several else None
        siblings = conversation.siblings(turn) if turn is not None else []
        if turn is None or len(siblings) < 2:
            self._hint("there is one version only; e edits, r answers once more")
        elif not self._is_busy():
            place = siblings.index(turn) + step
            await self._view.choose(siblings[place % len(siblings)])
            self._owner.post_message(messages.PathChanged())

    def _is_summary(self) -> bool:
        """Whether the last answer sums up messages that are on another branch."""
        conversation = self._view.conversation
        return "sums_up" in conversation.turns[conversation.leaf or 0].numbers

    def _is_hindered(self) -> bool:
        """Whether nothing can be asked now, which is said then."""
        reason_not_ready = self._activity.reason_not_ready
        if reason_not_ready:
            self._hint(reason_not_ready)
        return bool(reason_not_ready)

    def _is_busy(self) -> bool:
        """Whether an answer is being written, which is said then."""
        return self._activity.is_answering and self._is_hindered()

    def _hint(self, text: str) -> None:
        self._owner.post_message(messages.Hinted(text))


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
