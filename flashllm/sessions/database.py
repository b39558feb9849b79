"""The file: opening it so that it is private and durable, and SQLite's errors in words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from flashllm.errors import SessionError, SessionStoreBroken
from flashllm.sessions import schema

SIDE_FILES = ("", "-wal", "-shm")
"""What belongs to a database: itself, what was not moved into it yet, and the index of that."""
_LOCK_POLL_SECONDS = 0.05


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Opens the database, made or migrated where that is needed; the caller closes it."""
    _make(path)
    connection = sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        connection.text_factory = lambda content: content.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        schema.check(connection, str(path))
        _set_modes(connection, busy_seconds)
        schema.migrate(connection)
        connection.create_function("contains", 2, _contains, deterministic=True)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Turns what SQLite and the file system raise into errors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _session_error(path, str(error)) from error
    except OSError as error:
        raise SessionError(
            f"{error.filename or path}: {error.strerror}, so conversations cannot be kept; set "
            "FLASHLLM_HOME to a directory that can be written"
        ) from error


def set_aside(path: Path) -> list[Path]:
    """Renames the database, with what belongs to it, to names that are free; returns these."""
    ending = time.strftime(".aside-%Y%m%d-%H%M%S")
    while path.with_name(path.name + ending).exists():
        ending += "-again"
    moved = []
    with in_words(path):
        for side in SIDE_FILES:
            source = path.with_name(path.name + side)
            # SQLite finds the log by the database's name, so both keep belonging together.
            target = path.with_name(path.name + ending + side)
            if source.exists():
                source.rename(target)
                moved.append(target)
    return moved


def _make(path: Path) -> None:
    """An empty file that nobody else can read: SQLite gives its mode to those beside it.

    A database that exists is never opened here: closing it would take away the locks of every
    other connection of this process.
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
    """A log beside the database (WAL): readers and the writer do not wait for each other.

    What is committed is with the kernel at once, and so survives `kill -9`; a power cut may take
    the last seconds, and never damages the database (synchronous = NORMAL).
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


def _contains(text: object, folded: str) -> bool:
    return isinstance(text, str) and folded in text.casefold()


def _session_error(path: Path, problem: str) -> SessionError:
    lower = problem.lower()
    if "locked" in lower or "busy" in lower:
        return SessionError(f"{path}: another program is writing to it; try again in a moment")
    if "full" in lower:
        return SessionError(f"{path}: there is no space left on its disk; free some")
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
    return SessionError(f"{path}: {problem}; see whether its disk is well, and try again")
