"""The store of conversations, as the commands and the chat use it.

Every call is a transaction of its own, and waits `busy_seconds` at most for another program. A
store may be used by several threads, one after the other.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from flashllm.conversations import database, exchange, markdown, rows
from flashllm.conversations.database import connect, session_errors
from flashllm.conversations.records import Session, SessionSummary
from flashllm.errors import NotASession, SessionNotFound, SessionStoreBroken, UsageError

if TYPE_CHECKING:
    from flashllm.conversations.tree import Turn

BUSY_SECONDS = 2.0
NEWEST_MAX = 200
_INTEGER_MAX = (1 << 63) - 1
"""SQLite's largest integer."""


class SessionStore:
    """The database at `path` (None: the user's); created if it does not exist.

    Raises `SessionError` if it cannot be read or written, and `SessionStoreNewer` or
    `SessionStoreBroken` if it must be left as it is.
    """

    def __init__(self, path: Path | str | None = None, busy_seconds: float = BUSY_SECONDS) -> None:
        if path is None:
            from flashllm.system.paths import database_file

            path = database_file()
        self.path = Path(path)
        self._lock = threading.RLock()
        with session_errors(self.path):
            self._connection = connect(self.path, busy_seconds)
        self._file = _file_at(self.path)

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; may be called again."""
        with self._lock, session_errors(self.path):
            self._connection.close()

    @property
    def is_in_place(self) -> bool:
        """Whether the open file is still the one at `path`: it may have been renamed."""
        return self._file is not None and self._file == _file_at(self.path)

    def create(
        self,
        name: str = "",
        model: str = "",
        system: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> int:
        """A new conversation without turns; returns its id."""
        now = time.time()
        head = rows.head_row(name=name, model=model, system=system, settings=settings or {})
        with self._transaction() as run:
            return _id_of(
                run.execute(
                    database.INSERT_SESSION, head | {"leaf": None, "created": now, "updated": now}
                )
            )

    def summary(self, session_id: int) -> SessionSummary:
        """The entry of `list` for a conversation; `SessionNotFound` if there is none."""
        with self._transaction("BEGIN") as run:
            return self._summary(run, session_id)

    def load(self, session_id: int) -> Session:
        """The conversation with all of its branches; `SessionNotFound` if there is none."""
        try:
            with self._transaction("BEGIN") as run:
                meta = self._summary(run, session_id)
                settings, leaf = run.execute(
                    "SELECT settings, leaf FROM session WHERE id = ?", (session_id,)
                ).fetchone()
                turns = run.execute(database.TURNS, (session_id,))
                return rows.session_of(meta, settings, leaf, turns)
        except NotASession as error:
            raise SessionStoreBroken(
                f"{self.path}: conversation {session_id} does not hold together: {error}; "
                f"`flashllm sessions delete {session_id}` removes it"
            ) from error

    def save_turn(self, session_id: int, turn: Turn) -> int:
        """Adds a turn, which becomes the last one shown, or updates an existing one.

        Returns the id under which it is stored. If another program that continues the same
        conversation has taken the turn's own id, that is a free one, and both turns are branches.
        """
        row = rows.turn_row(session_id, turn)
        with self._transaction() as run:
            self._touch(run, session_id)
            above = run.execute(database.TURN, row | {"id": turn.parent}).fetchone()
            if above is None and turn.parent is not None:
                raise SessionNotFound(
                    f"{self.path}: in conversation {session_id}, the message before this one is "
                    "gone: it was deleted elsewhere"
                )
            place, is_new = _place_of(run, row)
            run.execute(database.SAVE_TURN, row | {"id": place})
            if is_new:
                run.execute("UPDATE session SET leaf = ? WHERE id = ?", (place, session_id))
        return place

    def save_leaf(self, session_id: int, leaf: int | None) -> None:
        """Sets the last turn of the branch that is shown."""
        with self._transaction() as run:
            self._touch(run, session_id)
            run.execute("UPDATE session SET leaf = ? WHERE id = ?", (leaf, session_id))

    def save_head(
        self,
        session_id: int,
        *,
        name: str | None = None,
        model: str | None = None,
        system: str | None = None,
        settings: Mapping[str, Any] | None = None,
        created: float | None = None,
    ) -> None:
        """Changes the given values and leaves the others; `created` as for `delete`."""
        head = rows.head_row(name=name, model=model, system=system, settings=settings)
        with self._transaction() as run:
            self._touch(run, session_id, created)
            run.execute(database.SAVE_HEAD, database.UNCHANGED | head | {"id": session_id})

    def replace_model(self, before: str, after: str) -> int:
        """Names another model in conversations that have `before`; returns how many had."""
        with self._transaction() as run:
            return run.execute(
                "UPDATE session SET model = ? WHERE model = ?", (after, before)
            ).rowcount

    def remove_turn(self, session_id: int, turn_id: int) -> None:
        """Deletes a turn with all below it; if it was shown, the branch ends above it."""
        names = {"session": session_id, "turn": turn_id}
        with self._transaction() as run:
            self._touch(run, session_id)
            found = run.execute(
                "SELECT parent FROM turn WHERE session = :session AND id = :turn", names
            ).fetchone()
            if found is None:
                return
            run.execute(database.REMOVE_TURN, names)
            run.execute(
                "UPDATE session SET leaf = :parent WHERE id = :session AND leaf NOT IN "
                "(SELECT id FROM turn WHERE session = :session)",
                {"session": session_id, "parent": found[0]},
            )

    def list(self, query: str = "", limit: int = NEWEST_MAX) -> list[SessionSummary]:
        """Conversations, last changed first; with `query`, those that contain it.

        It is looked for in name, system prompt and texts. Case does not count; no character is
        special.
        """
        folded = rows.storable(query).strip().casefold()
        matching = database.MATCHING if folded else ""
        with self._transaction("BEGIN") as run:
            found = run.execute(
                f"{database.SUMMARY}{matching}{database.NEWEST_FIRST} LIMIT :limit",
                {"query": folded, "limit": min(limit, _INTEGER_MAX)},
            ).fetchall()
        return [rows.summary_of(row) for row in found]

    def latest(self) -> int | None:
        """The conversation that was changed last, of those that have messages."""
        with self._transaction("BEGIN") as run:
            found = run.execute(database.NEWEST).fetchone()
        return found[0] if found else None

    def find(self, text: str) -> int:
        """The conversation with this id or name; case does not count."""
        with self._transaction("BEGIN") as run:
            found = run.execute(database.NAMES).fetchall()
        wanted = text.strip()
        # Longer ones are no ids, and Python refuses to read them.
        if wanted.isdecimal() and len(wanted) < 20 and int(wanted) in {one for one, _ in found}:
            return int(wanted)
        named = [number for number, name in found if name and name.casefold() == text.casefold()]
        if len(named) > 1:
            ids = ", ".join(map(str, named))
            raise UsageError(f"the name {text!r} is that of the conversations {ids}; give an id")
        if not named:
            raise SessionNotFound(
                f"there is no conversation {text!r}; `flashllm sessions list` shows them"
            )
        return int(named[0])

    def rename(self, session_id: int, name: str, created: float | None = None) -> None:
        """Names a conversation; names need not be unique. `created` as for `delete`."""
        self.save_head(session_id, name=name, created=created)

    def delete(self, session_id: int, created: float | None = None) -> None:
        """Deletes a conversation with its turns, for good.

        With `created`, only if it began then: if another database took the place of this one, the
        id may be that of another conversation, which counts as not found.
        """
        with self._transaction() as run:
            if not run.execute(database.DELETE, {"id": session_id, "created": created}).rowcount:
                raise self._not_found(session_id)
        with self._lock, contextlib.suppress(sqlite3.Error):
            # The log still holds it while another program, like the chat, is open.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def delete_empty(self, session_id: int) -> None:
        """Deletes a conversation that has no message; one that has some stays as it is.

        Another program that continues the same conversation may have added some.
        """
        with self._transaction() as run:
            run.execute(database.DELETE_EMPTY, {"id": session_id})

    def export_json(self, session_id: int) -> dict[str, Any]:
        """The whole conversation, as `import_json` reads it."""
        return exchange.to_json(self.load(session_id))

    def export_markdown(self, session_id: int) -> str:
        """The branch that is shown, for people."""
        return markdown.to_markdown(self.load(session_id))

    def import_json(self, value: object) -> int:
        """Adds the output of `export_json`, after checking all of it; returns the new id."""
        session = exchange.from_json(value)
        meta, conversation = session.meta, session.conversation
        head = rows.head_row(
            name=meta.name, model=meta.model, system=meta.system, settings=session.settings
        )
        times = {"created": meta.created, "updated": meta.updated}
        with self._transaction() as run:
            number = _id_of(
                run.execute(database.INSERT_SESSION, head | times | {"leaf": conversation.leaf})
            )
            for turn in conversation.turns.values():
                run.execute(database.SAVE_TURN, rows.turn_row(number, turn))
        return number

    def check(self) -> str:
        """Reads the whole database; returns what is wrong with it, or ""."""
        with self._lock, session_errors(self.path):
            found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        return "" if found == "ok" else f"{self.path}: is damaged: {found}"

    @contextlib.contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """A transaction; reading begins without the writers' lock."""
        with self._lock, session_errors(self.path):
            connection = self._connection
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk may have ended it already
                    connection.execute("ROLLBACK")
                raise

    def _summary(self, run: sqlite3.Connection, session_id: int) -> SessionSummary:
        found = run.execute(f"{database.SUMMARY} WHERE id = ?", (session_id,)).fetchone()
        if found is None:
            raise self._not_found(session_id)
        return rows.summary_of(found)

    def _touch(
        self, run: sqlite3.Connection, session_id: int, created: float | None = None
    ) -> None:
        names = {"id": session_id, "created": created, "now": time.time()}
        if not run.execute(database.TOUCH, names).rowcount:
            raise self._not_found(session_id)

    def _not_found(self, session_id: int) -> SessionNotFound:
        return SessionNotFound(
            f"there is no conversation {session_id} (any more); `flashllm sessions list` shows them"
        )


def _place_of(run: sqlite3.Connection, row: dict[str, object]) -> tuple[int, bool]:
    """The id for a turn, and whether the turn is new; turns are recognised by their time.

    Every turn's id is greater than its parent's, which may have been stored under another id.
    """
    there = run.execute(database.TURN, row).fetchone()
    number, parent = cast("int", row["id"]), cast("int | None", row["parent"])
    is_behind = parent is None or parent < number
    if is_behind and (there is None or there == (row["created"], row["role"])):
        return number, there is None
    for (elsewhere,) in run.execute(database.SAME_TURN, row):
        return elsewhere, False
    return cast("int", run.execute(database.FREE_ID, row).fetchone()[0]), True


def _file_at(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, which stay the same when it is renamed."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _id_of(inserted: sqlite3.Cursor) -> int:
    assert inserted.lastrowid is not None
    return inserted.lastrowid
