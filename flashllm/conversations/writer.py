"""Saving without waiting: a thread of its own writes, what cannot be written is kept and retried.

Calls are carried out in order. A turn that is saved again before the last time was written is
written once, as it is now: a slow disk gets fewer writes, not more that wait. So a growing answer
may be given at every token; it is written at once, and then as often as `PAUSE_SECONDS` says.
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
    """Session and turn, where a later one of the same makes this one needless."""


class SessionWriter:
    """Writes to the store at `path` (that of the user, if None); no call waits for the disk.

    `on_error` is called from the writing thread when something cannot be saved, once for each
    kind of trouble; it is tried again until it can be, and then `on_recovered` is called. What was
    meant for a conversation or a message that is gone (`SessionNotFound`) is given up.
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
        """Where turns are kept whose ids another program took; only the thread looks at it."""
        self._created: dict[SessionKey, float] = {}
        """When conversations began: in another database their ids may mean others."""
        self._known: set[SessionKey] = set()
        """Those that were found to be in the database that is open."""
        self.lost: set[SessionKey] = set()
        """Those that were looked for there and not found; what is meant for them is given up."""
        self._pending: list[_Operation] = []
        self._changed = threading.Condition()
        self._closing = False
        self._flushing = 0
        self._last: tuple[SessionKey, int] | None = None
        """The turn that was written last, if that was a turn, at `_last_at`."""
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
        """A new conversation, which the other calls take as they take an id."""
        session = NewSession()
        kept = dict(settings or {})

        def write(store: SessionStore) -> None:
            if session.id is None:
                session.id = store.create(name, model, system, kept)
            self._id(store, session)

        self._put(_Operation(session, write))
        return session

    def save_turn(self, session: SessionKey, turn: Turn) -> None:
        """Keeps the turn as it is now; it may change afterwards."""
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
        """The conversation was loaded anew, so its turns have the ids that the store gave them.

        `created` is when it began, which tells it from others of its id in other databases.
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

    def began(self, session: SessionKey) -> float | None:
        """When it did, once that is known: its id alone may be that of another one."""
        return self._created.get(session)

    def flush(self, seconds: float) -> bool:
        """Waits until all is saved, so long at most; False if it is not."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._pending, seconds)
            finally:
                self._flushing -= 1

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Saves what is left, so long at most, and ends; False if something was not saved."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        return not self._pending

    def _id(self, store: SessionStore, session: SessionKey) -> int:
        """Its id; `SessionNotFound` where the database is another one than it began in."""
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
        """Whether there is nothing left to do for it."""
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
        """Whether it is the conversation that is gone, which was there, or a message of it."""
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
        """Waits until it is time to try again, the last time when closing; True after that."""
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
