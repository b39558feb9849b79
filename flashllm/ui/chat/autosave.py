"""The application's side of saving: what changes goes to the writer's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashllm.conversations.records import Session
    from flashllm.conversations.tree import Conversation, Turn
    from flashllm.conversations.writer import SessionKey, SessionWriter
    from flashllm.errors import FlashllmError

EVERY_SECONDS = 0.4
"""A growing answer is saved so often: what was answered a second ago survives whatever happens."""


class Autosave:
    """Keeps one conversation at a time; without a path nothing is kept, and nothing else changes.

    A conversation is made in the database with its first turn.
    """

    def __init__(
        self,
        path: Path | str | None,
        on_error: Callable[[FlashllmError], object],
        on_recovered: Callable[[], object],
    ) -> None:
        self.path = path
        self.model = ""
        self.settings: dict[str, Any] = {}
        self._name = ""
        """The conversation's own, which stays while all of its messages are deleted."""
        self._tell = (on_error, on_recovered)
        self._writer: SessionWriter | None = None
        self._session: SessionKey | None = None
        self._saved_at = 0.0

    @property
    def session_id(self) -> int | None:
        """Of the conversation that is shown, once the database has it, and while it does."""
        if self._writer is not None and self._session in self._writer.lost:
            return None
        session = self._session
        return session if session is None or isinstance(session, int) else session.id

    @property
    def began(self) -> float | None:
        """When the conversation that is shown did, once that is known."""
        if self._writer is None or self._session is None:
            return None
        return self._writer.began(self._session)

    def forget(self) -> None:
        """The next turn begins a new conversation."""
        self._session, self._name = None, ""

    def emptied(self) -> None:
        """The conversation has no message any more: it is not kept, until it has one again."""
        if self._session is not None:
            self._open().remove_empty(self._session)
            self._session = None

    def load(self, session_id: int) -> Session:
        """Reads a conversation, which is kept from now on; all that was said is written before."""
        from flashllm.conversations.store import SessionStore

        assert self.path is not None
        self.flush(1.0)
        with SessionStore(self.path) as store:
            session = store.load(session_id)
        self._open().reopened(session_id, session.meta.created)
        self._session, self._name = session_id, session.meta.name
        return session

    def turn(self, conversation: Conversation, turn: Turn) -> None:
        """Saves a turn as it is now, and makes it the last one of what is shown."""
        if self.path is None:
            return
        writer = self._open()
        if self._session is None:
            self._session = writer.create(
                name=self._name,
                model=self.model,
                system=conversation.system,
                settings=self.settings,
            )
        writer.save_turn(self._session, turn)
        self._saved_at = time.monotonic()

    def growing(self, conversation: Conversation, turn: Turn) -> float:
        """Saves an answer that is being written, now and then; seconds until that is due again."""
        due = self._saved_at + EVERY_SECONDS - time.monotonic()
        if due <= 0:
            self.turn(conversation, turn)
            return 0.0
        return due

    def leaf(self, conversation: Conversation) -> None:
        """Which turn the shown branch ends with."""
        if self._session is not None:
            self._open().save_leaf(self._session, conversation.leaf)

    def head(
        self, *, name: str | None = None, system: str | None = None, model: str | None = None
    ) -> bool:
        """Saves what is said of the whole; False where nothing is kept yet."""
        if self._session is None:
            return False
        self._name = self._name if name is None else name
        self._open().save_head(
            self._session, name=name, system=system, model=model, settings=self.settings
        )
        return True

    def removed(self, turn_id: int) -> None:
        """A turn with all below it is gone."""
        if self._session is not None:
            self._open().remove_turn(self._session, turn_id)

    def flush(self, seconds: float) -> bool:
        """Waits for the disk, so long at most."""
        return self._writer is None or self._writer.flush(seconds)

    def close(self, seconds: float) -> bool:
        """Saves what is left; False if it was not possible in that time."""
        return self._writer is None or self._writer.close(seconds)

    def _open(self) -> SessionWriter:
        if self._writer is None:
            # With the database, for which the first frame would wait.
            from flashllm.conversations.writer import SessionWriter

            self._writer = SessionWriter(self.path, *self._tell)
        return self._writer
