"""The conversation, its widgets and its rows in the database, kept in step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashllm.conversations.tree import BROKEN_OFF
from flashllm.ui.closed_widgets import collect_closed_widgets
from flashllm.ui.transcript.turn import Question, TurnView

if TYPE_CHECKING:
    from flashllm.conversations.tree import Conversation, Turn
    from flashllm.ui.chat.autosave import Autosave
    from flashllm.ui.transcript.answer import Answer
    from flashllm.ui.transcript.transcript import Transcript

ENDS = {
    "cancelled": "stopped; Enter here, or /continue, goes on",
    "length": "stopped at the most tokens of an answer; Enter here, or /continue, goes on",
    "context": "stopped: the context is full; Ctrl+N begins a new conversation",
    BROKEN_OFF: "broke off; Enter here, or /continue, goes on",
}
"""What is said below an answer that did not end by itself."""
UNANSWERED = "nothing was answered; r here, or /regenerate, answers it"


def _drawn(turn: Turn) -> str:
    """How an answer was drawn, where that was not as the settings said; a file may say anything."""
    temperature, seed = turn.numbers.get("temp"), turn.numbers.get("seed")
    if not isinstance(temperature, int | float) or not isinstance(seed, int):
        return ""
    return f"drawn at temperature {temperature:g}, seed {seed}"


class ConversationView:
    """Every change of the conversation goes through here."""

    def __init__(self, conversation: Conversation, saving: Autosave) -> None:
        self.conversation = conversation
        self.saving = saving
        self.transcript: Transcript
        self._writing: int | None = None

    @property
    def writing(self) -> int | None:
        """The answer that is being written; its widget stays while it is."""
        return self._writing

    @writing.setter
    def writing(self, turn_id: int | None) -> None:
        self._writing = turn_id
        self.transcript.holds_end = turn_id is not None

    def load_answers(self) -> None:
        """Loads what the first answer needs: not for the first frame, and not when it is asked."""
        from flashllm.ui.transcript.markdown import make_parser

        make_parser()

    def make_view(self, turn_id: int) -> TurnView:
        """The widget of a turn."""
        from flashllm.ui.transcript.answer import Answer

        turn = self.conversation.turns[turn_id]
        kind = Question if turn.role == "user" else Answer
        return kind(turn.text, turn.id, self.note(turn))

    def answer(self, turn_id: int) -> Answer:
        """The widget of an answer that is shown."""
        from flashllm.ui.transcript.answer import Answer

        view = self.transcript.view(turn_id)
        assert isinstance(view, Answer)
        return view

    def note(self, turn: Turn) -> str:
        """What stands below a turn: which of its versions it is, and how it ended."""
        siblings = self.conversation.siblings(turn.id)
        parts = []
        if len(siblings) > 1:
            parts.append(f"‹ {siblings.index(turn.id) + 1}/{len(siblings)} ›")
        if "sums_up" in turn.numbers:
            parts.append("a summary of earlier messages, written by the model")
        elif drawn := _drawn(turn):
            parts.append(drawn)
        if turn.finish_reason in ENDS and turn.id != self.writing:
            parts.append(ENDS[turn.finish_reason] if turn.text.strip() else UNANSWERED)
        return "  ".join(parts)

    def renote(self) -> None:
        """Notes as they are now."""
        for view in self.transcript.views():
            if view.turn_id in self.conversation.turns:
                view.show_note(self.note(self.conversation.turns[view.turn_id]))

    async def add(self, *turns: Turn) -> None:
        """Turns that the conversation has just got; the path now ends with them."""
        for turn in turns:
            self.saving.turn(self.conversation, turn)
        if any(len(self.conversation.siblings(turn.id)) > 1 for turn in turns):
            await self.refresh()
        else:
            await self.transcript.add(*(self.make_view(turn.id) for turn in turns))
        self.saving.leaf(self.conversation)

    async def refresh(self) -> None:
        """Shows the path as it is now."""
        await self.transcript.show([turn.id for turn in self.conversation.path()])
        self.renote()

    async def remove(self, turn_id: int, instead: int | None = None) -> None:
        """Removes a turn with all below; `instead` is the version to be shown then."""
        self.conversation.remove(turn_id)
        self.saving.removed(turn_id)
        if instead is not None and instead in self.conversation.turns:
            self.conversation.choose(instead)
        if self.conversation.turns:
            self.saving.leaf(self.conversation)
        else:
            self.saving.emptied()
        await self.refresh()

    async def choose(self, turn_id: int) -> None:
        """Shows the branch through a turn."""
        self.conversation.choose(turn_id)
        self.saving.leaf(self.conversation)
        await self.refresh()
        self.transcript.select(turn_id)

    async def begin(self) -> None:
        """A new conversation, with the same system prompt."""
        self.conversation.clear()
        self.saving.forget()
        await self._empty()
        await self.refresh()

    async def restore(self, session_id: int) -> None:
        """Shows a conversation that was kept. Errors: those of `SessionStore`."""
        session = self.saving.load(session_id)
        self.conversation = session.conversation
        self.saving.settings = dict(session.settings)
        for turn in self.conversation.turns.values():
            if turn.role == "assistant" and turn.finish_reason is None:
                turn.finish_reason = "cancelled"  # it was being written when the process ended
        await self._empty()
        await self.refresh()

    async def _empty(self) -> None:
        # The heap never becomes smaller than when the widgets of two conversations were there.
        await self.transcript.empty()
        collect_closed_widgets(self.transcript.app)
