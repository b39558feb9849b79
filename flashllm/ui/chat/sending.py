"""Messages on their way to the model: sent at once, or waiting until they can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashllm.ui.chat.status import Phase
from flashllm.ui.commands.table import unescaped

if TYPE_CHECKING:
    from flashllm.ui.chat.answering import Answering
    from flashllm.ui.chat.conversation_view import ConversationView
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.prompt.draft import Draft
    from flashllm.ui.prompt.waiting import WaitingMessages


class Sending:
    """Asks, or adds to those that wait; what is held is not sent by itself."""

    def __init__(
        self,
        view: ConversationView,
        activity: Activity,
        answering: Answering,
        waiting: WaitingMessages,
    ) -> None:
        self._view = view
        self._activity = activity
        self._answering = answering
        self._waiting = waiting

    async def send(self, draft: Draft) -> None:
        """Asks now, or as soon as the model is open and has no other answer to write."""
        if self._activity.reason_not_ready:
            self._waiting.add(draft)
        else:
            await self._ask(draft)

    async def send_first(self) -> None:
        """Sends the first of those that wait, held or not, if it can be answered now."""
        await self._send_waiting(0)

    async def send_due(self) -> None:
        """Sends the first that is not held, if it can be answered now."""
        await self._send_waiting(self._waiting.held)

    def hint(self) -> str:
        """When those that wait are sent, and what keys do to them."""
        if self._waiting.held:
            when = "held: Enter sends the first"
        elif self._activity.phase is Phase.OPENING:
            when = "sent when the model is open"
        else:
            when = "sent after this answer"
        return f"{when}; Up takes the last one back, Ctrl+T removes it"

    async def _send_waiting(self, index: int) -> None:
        if self._activity.phase is not Phase.READY:
            return
        if (draft := self._waiting.take(index)) is not None:
            await self._ask(draft)

    async def _ask(self, draft: Draft) -> None:
        turns = self._view.conversation.turns
        edited = draft.edited if draft.edited in turns else None  # it may be deleted by now
        await self._answering.ask(unescaped(draft.text.strip()), edited)
