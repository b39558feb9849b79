"""Saves without waiting: a thread of its own writes, and retries what could not be written.

Operations run in order. If a turn is saved again before it was written, only the newer version is
written, so a slow disk gets fewer writes and no queue builds up. A growing answer may therefore be
saved at every token; it is written at once, and then every `PAUSE_SECONDS`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.conversations.store import BUSY_SECONDS, SessionStore
from flashllm.errors import FlashllmError, SessionError, SessionNotFound

if TYPE_CHECKING:
    from flashllm.conversations.tree import Turn

PAUSE_SECONDS = 0.25
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class NewSession:
    """A conversation that is being made; `id` is None until the database has it."""

    id: int | None = None


SessionKey = int | NewSession


@dataclass(frozen=True, slots=True, eq=False)
class _Operation:
    session: SessionKey
    write: Callable[[SessionStore], None]
    renews: tuple[SessionKey, int] | None = None
    """(session, turn); a later operation with the same value replaces this one."""


class SessionWriter:
    """Writes to the store at `path` (None: the user's); no call waits for the disk.

    When something cannot be saved, the writing thread calls `on_error`, once for each kind of
    error. It retries until it succeeds and then calls `on_recovered`. Changes of a conversation or
    message that no longer exists (`SessionNotFound`) are dropped.
    """

    def __init__(
        self,
        path: Path | str | None,
        on_error: Callable[[FlashllmError], object],
        on_recovered: Callable[[], object] | None = None,
        *,
        retry_seconds: float = RETRY_SECONDS,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._path = path
        self._on_error = on_error
        self._on_recovered = on_recovered or (lambda: None)
        self._retry_seconds = retry_seconds
        self._busy_seconds = busy_seconds
        self._store: SessionStore | None = None
        self._reported = ""
        self._is_failing = False
        self._places: dict[tuple[SessionKey, int], int] = {}
        """Stored ids of turns whose own ids another program took; used by the thread only."""
        self._created: dict[SessionKey, float] = {}
        """When conversations began: another database may use the same ids for others."""
        self._known: set[SessionKey] = set()
        """Conversations that are known to be in the open database."""
        self.lost: set[SessionKey] = set()
        """Conversations that were not found there; their changes are dropped."""
        self._pending: list[_Operation] = []
        self._changed = threading.Condition()
        self._closing = False
        self._flushing = 0
        self._last: tuple[SessionKey, int] | None = None
        """The turn that was written last, at `_last_at`; None if the last write was no turn."""
        self._last_at = 0.0
        self._thread = threading.Thread(target=self._run, name="sessions", daemon=True)
        self._thread.start()

    def create(
        self,
        *,
        name: str = "",
        model: str = "",
        system: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> NewSession:
        """Begins a conversation; the other calls accept the result like an id."""
        session = NewSession()
        kept = dict(settings or {})

        def write(store: SessionStore) -> None:
            if session.id is None:
                session.id = store.create(name, model, system, kept)
            self._id(store, session)

        self._put(_Operation(session, write))
        return session

    def save_turn(self, session: SessionKey, turn: Turn) -> None:
        """Saves the turn as it is now; later changes of `turn` do not matter."""
        copy = replace(turn, numbers=dict(turn.numbers))

        def write(store: SessionStore) -> None:
            number = self._id(store, session)
            parent = None if copy.parent is None else self._place(session, copy.parent)
            kept = replace(copy, id=self._place(session, copy.id), parent=parent)
            place = store.save_turn(number, kept)
            if place != kept.id:
                self._places[session, copy.id] = place

        self._put(_Operation(session, write, (session, turn.id)))

    def save_leaf(self, session: SessionKey, leaf: int | None) -> None:
        """As `SessionStore.save_leaf`."""

        def write(store: SessionStore) -> None:
            number = self._id(store, session)
            store.save_leaf(number, None if leaf is None else self._place(session, leaf))

        self._put(_Operation(session, write))

    def reopened(self, session: SessionKey, created: float) -> None:
        """The conversation was loaded again, so its turns have the ids of the store.

        `created` is when it began; other databases may use its id for other conversations.
        """

        def forget(_store: SessionStore) -> None:
            self._created[session] = created
            self._known.discard(session)
            self.lost.discard(session)
            for place in [place for place in self._places if place[0] == session]:
                del self._places[place]

        self._put(_Operation(session, forget))

    def save_head(
        self,
        session: SessionKey,
        *,
        name: str | None = None,
        model: str | None = None,
        system: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """As `SessionStore.save_head`."""
        kept = None if settings is None else dict(settings)
        self._put(
            _Operation(
                session,
                lambda store: store.save_head(
                    self._id(store, session), name=name, model=model, system=system, settings=kept
                ),
            )
        )

    def remove_turn(self, session: SessionKey, turn_id: int) -> None:
        """As `SessionStore.remove_turn`."""

        def write(store: SessionStore) -> None:
            store.remove_turn(self._id(store, session), self._place(session, turn_id))

        self._put(_Operation(session, write))

    def remove_empty(self, session: SessionKey) -> None:
        """As `SessionStore.delete_empty`; nothing else may follow for this conversation."""
        self._put(_Operation(session, lambda store: store.delete_empty(self._id(store, session))))

    def began(self, session: SessionKey) -> float | None:
        """When the conversation began, or None while that is not known.

        Its id alone does not identify it: another database may use the same id.
        """
        return self._created.get(session)

    def flush(self, seconds: float) -> bool:
        """Waits up to `seconds` until everything is saved; False if something is not."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._pending, seconds)
            finally:
                self._flushing -= 1

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Saves the rest within `seconds` and ends; False if something was not saved."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        return not self._pending

    def _id(self, store: SessionStore, session: SessionKey) -> int:
        """The conversation's id; `SessionNotFound` if it began in another database."""
        number = session.id if isinstance(session, NewSession) else session
        assert number is not None  # made by an earlier operation, and these keep their order
        if session in self._known:
            return number
        try:
            created = store.summary(number).created
            if self._created.setdefault(session, created) != created:
                raise SessionNotFound(
                    f"{store.path}: is not the database in which this conversation began, and its "
                    f"conversation {number} is another one, which is left alone; `/export` in the "
                    "chat writes this one into a file"
                )
        except SessionNotFound:
            self.lost.add(session)
            raise
        self._known.add(session)
        self.lost.discard(session)
        return number

    def _place(self, session: SessionKey, turn_id: int) -> int:
        return self._places.get((session, turn_id), turn_id)

    def _put(self, operation: _Operation) -> None:
        with self._changed:
            for index in range(len(self._pending) - 1, -1, -1):
                renewed = self._pending[index].renews
                if renewed is None or operation.renews is None:
                    break  # the order of what is not a turn matters
                if renewed == operation.renews:
                    self._pending[index] = operation
                    return
            self._pending.append(operation)
            self._changed.notify_all()

    def _run(self) -> None:
        while (operation := self._next()) is not None:
            if self._attempt(operation):
                self._done(operation)
            elif self._wait_for_retry():
                break
        self._close_store()

    def _next(self) -> _Operation | None:
        """Waits for the next operation; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            grows = self._pending and self._last and self._pending[0].renews == self._last
            if grows:
                pause = self._last_at + PAUSE_SECONDS - time.monotonic()
                self._changed.wait_for(lambda: self._closing or self._flushing, max(pause, 0))
            return self._pending[0] if self._pending else None

    def _attempt(self, operation: _Operation) -> bool:
        """Carries out an operation; whether it is finished, so that it need not be retried."""
        try:
            if self._store is not None and not self._store.is_in_place:
                self._close_store()
            if self._store is None:
                self._store = SessionStore(self._path, self._busy_seconds)
            operation.write(self._store)
        except SessionNotFound as error:
            self._look_again(operation.session)
            self._report(error)
            return True
        except FlashllmError as error:
            self._close_store()  # the file may have been moved, or be on a disk that comes back
            self._is_failing = True
            self._report(error)
            return False
        except Exception as error:  # noqa: BLE001  the others must still be saved
            self._report(
                SessionError(f"a message cannot be saved: {type(error).__name__}: {error}")
            )
            return True
        if self._is_failing:
            self._is_failing, self._reported = False, ""
            self._on_recovered()
        return True

    def _look_again(self, session: SessionKey) -> None:
        """Finds out whether the conversation is gone, or only one of its messages."""
        self._known.discard(session)
        if self._store is not None:
            with contextlib.suppress(FlashllmError):
                self._id(self._store, session)

    def _done(self, operation: _Operation) -> None:
        with self._changed:
            if self._pending[0] is operation:  # else it was renewed meanwhile
                del self._pending[0]
            self._last, self._last_at = operation.renews, time.monotonic()
            self._changed.notify_all()

    def _wait_for_retry(self) -> bool:
        """Waits until the next retry; True if that was the last one, since `close` was called."""
        with self._changed:
            was_last = self._closing
            self._changed.wait_for(lambda: self._closing, self._retry_seconds)
            return was_last

    def _report(self, error: FlashllmError) -> None:
        if str(error) != self._reported:
            self._reported = str(error)
            self._on_error(error)

    def _close_store(self) -> None:
        store, self._store = self._store, None
        self._known.clear()
        if store is not None:
            with contextlib.suppress(FlashllmError):
                store.close()
