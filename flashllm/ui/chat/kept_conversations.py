"""Conversations that are kept: found, named, written into files, read from them, deleted.

The database is imported where it is asked, since the first frame would wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.errors import FlashllmError, UsageError
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.conversations.records import Session
    from flashllm.conversations.store import SessionStore
    from flashllm.ui.chat.conversation_view import ConversationView

NOTHING_KEPT = "conversations are not kept in this chat"


class KeptConversations:
    """Those of the chat's database, and the one that is shown among them."""

    def __init__(self, view: ConversationView) -> None:
        self._view = view

    def open_store(self) -> SessionStore:
        """The database, once all that was said is written. Errors: those of `SessionStore`."""
        from flashllm.conversations.store import SessionStore

        self._view.saving.flush(1.0)
        return SessionStore(self._view.saving.path)

    async def find(self, text: str) -> int:
        """The number of the conversation that a number or a name means."""
        return int(await self._with_store(lambda store: store.find(text)))

    async def delete(self, session_id: int, created: float | None) -> None:
        """Deletes the conversation that has this number and began then."""
        await self._with_store(lambda store: store.delete(session_id, created))

    async def rename(self, name: str) -> str:
        """Names the conversation that is shown; returns what came of it, as a sentence."""
        saving = self._view.saving
        if not saving.head(name=sanitize_line(name)):
            raise UsageError("/rename: nothing is kept yet; ask something first")
        if not await asyncio.to_thread(saving.flush, 1.0):
            return "the name is not kept yet"
        if saving.session_id is None:
            return "the name is not kept, nor is this conversation"
        return f"this conversation is called “{sanitize_line(name)}” now"

    async def write_file(self, kind: str, path: str) -> str:
        """Writes the conversation that is shown into a file of `kind` md or json."""
        from flashllm.conversations.files import export_name, write_session

        if kind not in ("md", "json"):
            raise UsageError(f"/export: {kind!r} is neither md nor json")
        session_id = self._view.saving.session_id
        if not self._view.conversation.turns:
            raise UsageError("/export: there is nothing to export yet")
        target = path or str(Path.cwd() / export_name(session_id or 0, "", kind))
        session = self._as_shown()
        if session_id is not None:
            # Of the database only what it alone knows: it lacks turns where saving fails.
            with contextlib.suppress(FlashllmError):
                meta = await self._with_store(lambda store: store.summary(session_id))
                model = session.meta.model or meta.model  # none is open yet, perhaps
                session.meta = replace(
                    session.meta, name=meta.name, model=model, created=meta.created
                )
        return await asyncio.to_thread(write_session, session, target, kind)

    async def read_file(self, path: str) -> int:
        """Reads an exported conversation; returns the number under which it is kept now."""
        from flashllm.conversations.files import import_file

        return int(await self._with_store(lambda store: import_file(store, path)))

    def _as_shown(self) -> Session:
        """The conversation as it is now, whatever becomes of it while it is written."""
        from flashllm.conversations.records import Session, SessionSummary
        from flashllm.conversations.rows import PREVIEW_CHARACTERS

        now, saving = time.time(), self._view.saving
        conversation = copy.deepcopy(self._view.conversation)
        begin = next((turn.text for turn in conversation.path()), "")
        preview = sanitize_line(begin)[:PREVIEW_CHARACTERS]
        model, turns = saving.model, len(conversation.turns)
        meta = SessionSummary(0, "", model, conversation.system, now, now, turns, preview)
        return Session(meta, conversation, dict(saving.settings))

    async def _with_store(self, work: Callable[[SessionStore], Any]) -> Any:
        if self._view.saving.path is None:
            raise UsageError(NOTHING_KEPT)

        def call() -> Any:
            with self.open_store() as store:
                return work(store)

        return await asyncio.to_thread(call)
