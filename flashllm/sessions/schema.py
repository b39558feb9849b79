"""The tables, and how an older database becomes today's.

`user_version` of the database counts the migrations that it has seen. A migration that was once
released never changes; a new one is added at the end.
"""

from __future__ import annotations

import sqlite3

from flashllm.errors import SessionStoreBroken, SessionStoreNewer

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
    """Only reads; raises if the database is a newer one or another program's."""
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
    """Brings the database to today's version, wholly or, if that fails, not at all."""
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
