"""`/compact`: a new branch with more room in the context; it leaves out or sums up what was said.

The messages that are not on it stay on the branch that was shown before, and in the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flashllm.conversations.tree import BROKEN_OFF
from flashllm.errors import UsageError
from flashllm.ui.chat import messages

if TYPE_CHECKING:
    from flashllm.conversations.tree import Turn
    from flashllm.ui.chat.answering import Answering
    from flashllm.ui.chat.conversation_view import ConversationView
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.widgets.owner import Owner

SUM_UP = (
    "Sum up our conversation so far in a few sentences: what I asked, what you answered, and what "
    "is worth remembering."
)
BACK = "Left on the first message shows all of them again; nothing is deleted."


class Compaction:
    """Leaves earlier messages out, or has the model sum them up; the last question stays whole.

    `owner` gets `Remarked` and `PathChanged`.
    """

    def __init__(
        self, owner: Owner, view: ConversationView, activity: Activity, answering: Answering
    ) -> None:
        self._owner = owner
        self._view = view
        self._activity = activity
        self._answering = answering
        self._question: Turn | None = None
        """What the model is asked for a summary with, while it writes one."""
        self._before: int | None = None
        self._older: Sequence[Turn] = ()
        self._kept: Sequence[Turn] = ()
        self._unread = 0
        """Messages for which the context had no room while they were summed up."""

    @property
    def is_running(self) -> bool:
        """Whether a summary is being written."""
        return self._question is not None

    async def sum_up(self) -> None:
        """Asks the model for a summary, of which `finish` makes a branch; or a `UsageError`."""
        conversation = self._view.conversation
        older, kept = self._parts()
        self._before, self._older, self._kept, self._unread = conversation.leaf, older, kept, 0
        said = conversation.messages()[: len(older)]
        known = {n: ids for n, ids in conversation.known().items() if n < len(older)}
        self._question = conversation.begin_branch(SUM_UP)
        asked = [*said, {"role": "user", "content": SUM_UP}]
        await self._answering.answer_aside(self._question, asked, known)

    async def leave_out(self) -> None:
        """Begins a branch with the last question and its answer; or a `UsageError`."""
        older, kept = self._parts()
        first = self._view.conversation.begin_branch(kept[0].text)
        await self._view.add(first)
        await self._append(kept[1:])
        self._tell(f"{_messages(len(older))} are left out from here on. {BACK}")

    def note_unread(self, dropped: int) -> None:
        """The context has no room for so many of the messages that are summed up."""
        self._unread = dropped

    async def finish(self, reason: str) -> None:
        """The summary is written, or is not: then what was shown before is shown again."""
        question, self._question = self._question, None
        assert question is not None
        summary = self._view.conversation.turns.get(self._view.conversation.leaf or 0)
        if summary is None or not summary.text.strip() or reason in ("cancelled", BROKEN_OFF):
            await self._view.remove(question.id, self._before)
            self._tell("Nothing was summed up; the conversation is as it was.")
            return
        summary.numbers = {**summary.numbers, "sums_up": len(self._older)}
        self._view.saving.turn(self._view.conversation, summary)
        await self._append(self._kept)
        words = f"{_messages(len(self._older))} are summed up here, by the model itself"
        if self._unread:
            words += f"; {_messages(self._unread).lower()} of them had no room and are left out"
        self._tell(f"{words}. The last question and its answer stay as they are. {BACK}")

    def _parts(self) -> tuple[list[Turn], list[Turn]]:
        """Messages before the last question, and the rest, of those that the model is sent."""
        if reason := self._activity.reason_not_ready:
            raise UsageError(f"/compact: {reason}")
        sent = self._view.conversation.sent()
        last = max((n for n, turn in enumerate(sent) if turn.role == "user"), default=0)
        if not last:
            raise UsageError("/compact: there is nothing before the last question to leave out")
        return sent[:last], sent[last:]

    async def _append(self, turns: Sequence[Turn]) -> None:
        conversation = self._view.conversation
        await self._view.add(*(conversation.append_copy(turn) for turn in turns))
        self._view.renote()

    def _tell(self, text: str) -> None:
        self._owner.post_message(messages.Remarked(text))
        self._owner.post_message(messages.PathChanged())


def _messages(count: int) -> str:
    return f"{count} earlier message{'' if count == 1 else 's'}"
