"""The database file: opens it privately and durably, and turns SQLite's errors into ours."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from flashllm.errors import SessionError, SessionStoreBroken, SessionStoreNewer

APPLICATION_ID = 0x464C4C4D
"""`FLLM`, in the header of the file: the database is ours."""

# Ids of sessions are never given twice, so that an id that somebody noted means one conversation.
# A turn's parent is no foreign key: SQLite follows at most 1000 levels when it deletes along them.
_TABLES = (
    """
    CREATE TABLE session (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        model TEXT NOT NULL,
        system TEXT NOT NULL,
        settings TEXT NOT NULL,         -- JSON, an object
        leaf INTEGER,                   -- last turn of the branch that is shown
        created REAL NOT NULL,          -- seconds since 1970
        updated REAL NOT NULL
    )
    """,
    """
    CREATE TABLE turn (
        session INTEGER NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        id INTEGER NOT NULL,            -- within its session; a parent's is smaller
        parent INTEGER,                 -- NULL: a first question
        role TEXT NOT NULL,             -- user, assistant
        text TEXT NOT NULL,
        ids BLOB NOT NULL,              -- tokens of an answer, 4 bytes each, little-endian
        finish_reason TEXT,             -- NULL: still being written, or cut off
        created REAL NOT NULL,
        numbers TEXT NOT NULL,          -- JSON, an object
        UNIQUE (session, id)
    )
    """,
    "CREATE INDEX turn_parent ON turn (session, parent)",
    "CREATE INDEX session_updated ON session (updated)",
)
MIGRATIONS: tuple[tuple[str, ...], ...] = (_TABLES,)
"""Statements that lead from version n to n + 1."""


def check(connection: sqlite3.Connection, place: str) -> None:
    """Raises if a newer version or another program wrote the database; only reads."""
    connection.execute("BEGIN")  # one look, though another process may be making it just now
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    version = version_of(connection)
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    connection.execute("COMMIT")
    if mark != APPLICATION_ID and not (empty and version == 0 and mark == 0):
        raise SessionStoreBroken(
            f"{place}: is another program's database; set FLASHLLM_HOME to keep conversations "
            "elsewhere, or move this file away"
        )
    if version > len(MIGRATIONS):
        raise SessionStoreNewer(
            f"{place}: is of version {version}, and this flashllm knows {len(MIGRATIONS)}. "
            "Install a later flashllm, or set FLASHLLM_HOME to keep conversations "
            "elsewhere; nothing was changed"
        )


def migrate(connection: sqlite3.Connection) -> None:
    """Migrates the database to the current version, completely or not at all."""
    if version_of(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in MIGRATIONS[version_of(connection) :]:  # another process may be first
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def version_of(connection: sqlite3.Connection) -> int:
    """How many migrations the database has seen."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


# Types are cast, since a damaged database may hold any, even NULL, and the list has to be shown.
SUMMARY = """
    SELECT id, coalesce(CAST(name AS TEXT), ''), coalesce(CAST(model AS TEXT), ''),
           coalesce(CAST(system AS TEXT), ''), coalesce(CAST(created AS REAL), 0.0),
           coalesce(CAST(updated AS REAL), 0.0),
           (SELECT count(*) FROM turn WHERE turn.session = session.id),
           coalesce((SELECT CAST(substr(text, 1, 400) AS TEXT) FROM turn
                     WHERE turn.session = session.id ORDER BY turn.id LIMIT 1), '')
    FROM session
"""
MATCHING = """
    WHERE contains(name, :query) OR contains(system, :query)
       OR EXISTS (SELECT 1 FROM turn WHERE turn.session = session.id AND contains(text, :query))
"""
NAMES = "SELECT id, CAST(name AS TEXT) FROM session ORDER BY id"
NEWEST_FIRST = " ORDER BY updated DESC, id DESC"
NEWEST = """
    SELECT id FROM session WHERE EXISTS (SELECT 1 FROM turn WHERE turn.session = session.id)
    ORDER BY updated DESC, id DESC LIMIT 1
"""
# With NULL for when it was created, the id alone decides.
TOUCH = """
    UPDATE session SET updated = :now
    WHERE id = :id AND coalesce(CAST(created AS REAL) = :created, 1)
"""
DELETE = """
    DELETE FROM session WHERE id = :id AND coalesce(CAST(created AS REAL) = :created, 1)
"""
DELETE_EMPTY = """
    DELETE FROM session
    WHERE id = :id AND NOT EXISTS (SELECT 1 FROM turn WHERE turn.session = session.id)
"""
INSERT_SESSION = """
    INSERT INTO session (name, model, system, settings, leaf, created, updated)
    VALUES (:name, :model, :system, :settings, :leaf, :created, :updated)
"""
SAVE_HEAD = """
    UPDATE session SET name = coalesce(:name, name), model = coalesce(:model, model),
           system = coalesce(:system, system), settings = coalesce(:settings, settings)
    WHERE id = :id
"""
UNCHANGED = {"name": None, "model": None, "system": None, "settings": None}
TURNS = """
    SELECT id, parent, role, text, ids, finish_reason, created, numbers
    FROM turn WHERE session = ? ORDER BY id
"""
SAVE_TURN = """
    INSERT INTO turn (session, id, parent, role, text, ids, finish_reason, created, numbers)
    VALUES (:session, :id, :parent, :role, :text, :ids, :finish_reason, :created, :numbers)
    ON CONFLICT (session, id) DO UPDATE SET
        parent = excluded.parent, role = excluded.role, text = excluded.text, ids = excluded.ids,
        finish_reason = excluded.finish_reason, numbers = excluded.numbers
"""
TURN = "SELECT created, role FROM turn WHERE session = :session AND id = :id"
SAME_TURN = """
    SELECT id FROM turn
    WHERE session = :session AND id > :id AND created = :created AND role = :role LIMIT 1
"""
FREE_ID = "SELECT max(id) + 1 FROM turn WHERE session = :session"
REMOVE_TURN = """
    WITH RECURSIVE below (id) AS (
        VALUES (:turn)
        UNION SELECT turn.id FROM turn JOIN below ON turn.parent = below.id
        WHERE turn.session = :session
    )
    DELETE FROM turn WHERE session = :session AND id IN below
"""


SIDE_FILES = ("", "-wal", "-shm")
"""Suffixes of a database's files: the database, its write-ahead log, and the log's index."""
CACHE_BYTES = 256 << 10
"""Pages of the file that a connection keeps. The kernel keeps them as well, and SQLite's own 2 MB
would fill up in the chat as the file grows, turn after turn."""
_LOCK_POLL_SECONDS = 0.05
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_PROBE_BYTES = 64 << 10
"""More than SQLite asks for at once: the log's index grows by 32 KiB."""


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Opens the database, and creates or migrates it if necessary; the caller closes it."""
    _make(path)
    connection = sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        connection.text_factory = lambda content: content.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        check(connection, str(path))
        _set_modes(connection, busy_seconds)
        migrate(connection)
        connection.create_function("contains", 2, _contains, deterministic=True)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def session_errors(path: Path) -> Iterator[None]:
    """Turns what SQLite and the file system raise into errors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _session_error(path, error) from error
    except UnicodeDecodeError as error:  # of a message that quotes what is damaged
        broken = sqlite3.DatabaseError("malformed: a text of it is not UTF-8")
        raise _session_error(path, broken) from error
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _no_space(path) from error
        raise SessionError(
            f"{error.filename or path}: {error.strerror}, so conversations cannot be kept; set "
            "FLASHLLM_HOME to a directory that can be written"
        ) from error


def set_aside(path: Path) -> list[Path]:
    """Renames the database and its log to free names; returns these."""
    ending = time.strftime(".aside-%Y%m%d-%H%M%S")
    while path.with_name(path.name + ending).exists():
        ending += "-again"
    moved = []
    with session_errors(path):
        for side in SIDE_FILES:
            source = path.with_name(path.name + side)
            # SQLite finds the log by the database's name, so both keep belonging together.
            target = path.with_name(path.name + ending + side)
            if source.exists():
                source.rename(target)
                moved.append(target)
    return moved


def _make(path: Path) -> None:
    """Creates an empty file that only its owner can read; SQLite gives its log the same mode.

    An existing database is never opened here: closing it would release the locks of every other
    connection of this process.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        with contextlib.suppress(OSError):  # somebody else's file, or gone
            for side in SIDE_FILES:
                file = path.with_name(path.name + side)
                if file.exists() and file.stat().st_mode & 0o077:
                    file.chmod(0o600)


def _set_modes(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Uses a write-ahead log (WAL): readers and the writer do not wait for each other.

    A commit reaches the kernel at once and so survives `kill -9`. A power cut may lose the last
    seconds, but never damages the database (synchronous = NORMAL).
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:  # SQLite itself does not wait here
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_POLL_SECONDS)
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # what was deleted is gone from the file too
    connection.execute(f"PRAGMA journal_size_limit = {4 << 20}")
    connection.execute(f"PRAGMA cache_size = -{CACHE_BYTES >> 10}")  # negative: in KiB


def _contains(text: object, folded: str) -> bool:
    return isinstance(text, str) and folded in text.casefold()


def _session_error(path: Path, error: sqlite3.Error) -> SessionError:
    problem = str(error)
    lower = problem.lower()
    if "locked" in lower or "busy" in lower:
        return SessionError(f"{path}: another program is writing to it; try again in a moment")
    if "full" in lower or ("disk i/o" in lower and _is_disk_full(path)):
        return _no_space(path)
    if "readonly" in lower or "unable to open" in lower:
        return SessionError(
            f"{path}: cannot be written ({problem}); see who owns it and its directory, or set "
            "FLASHLLM_HOME to a directory that can be written"
        )
    if any(word in lower for word in ("malformed", "not a database", "corrupt", "no such")):
        return SessionStoreBroken(
            f"{path}: is damaged ({problem}); it was left as it is. `flashllm sessions set-aside` "
            "renames it, so that a new one is begun"
        )
    code = getattr(error, "sqlite_errorname", "")  # which operation failed, where SQLite told
    what = f"{problem} ({code})" if code else problem
    return SessionError(f"{path}: {what}; see whether its disk is well, and try again")


def _no_space(path: Path) -> SessionError:
    return SessionError(f"{path}: there is no space left on its disk; free some")


def _is_disk_full(path: Path) -> bool:
    """Whether nothing more can be written next to `path`, be it for want of space or of quota.

    SQLite tells of a full disk only where a plain write met it: the log's index, a sync and a quota
    are "disk I/O error".
    """
    import tempfile  # slow to import, and hardly ever needed

    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())  # some file systems look for space no earlier
    except OSError as error:
        return error.errno in _NO_SPACE
    return False
