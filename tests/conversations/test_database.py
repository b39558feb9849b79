"""The file itself: private, durable, migrated, and left alone where something is wrong with it."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flashllm.conversations import database
from flashllm.conversations.database import set_aside
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.errors import SessionError, SessionStoreBroken, SessionStoreNewer

SCHEMA_1 = Path(__file__).with_name("schema_1.sql")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def filled(path: Path) -> int:
    with SessionStore(path) as store:
        number = store.create(name="kept")
        store.save_turn(number, Turn(1, None, "user", "a question"))
    return number


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "chats.db"
    before = os.umask(0)
    try:
        store = SessionStore(path)
        store.create()
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    store.close()
    assert modes == dict.fromkeys(("chats.db", "chats.db-wal", "chats.db-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    SessionStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def asked(path: Path, question: str) -> Any:
    """What another connection is told."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchone()[0]


def test_few_pages_are_kept_in_memory(path: Path) -> None:
    """SQLite's own 2 MB would fill up in the chat, as the file grows."""
    with SessionStore(path) as store:
        kept = store._connection.execute("PRAGMA cache_size").fetchone()[0]
    assert -256 <= kept < 0, "KiB"


def test_a_database_of_the_first_schema_opens(path: Path) -> None:
    """What the first version wrote: never to be changed."""
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA_1.read_text("utf-8"))
    connection.close()
    with SessionStore(path) as store:
        session = store.load(3)
        assert asked(path, "PRAGMA user_version") == len(database.MIGRATIONS)
        assert store.create() == 4
    assert (session.meta.name, session.meta.system) == ("Größe 100%", "Be brief.")
    assert session.settings == {"temp": 0.5}
    turns = session.conversation.turns
    assert [(turn.id, turn.parent, turn.role) for turn in turns.values()] == [
        (1, None, "user"), (2, 1, "assistant"), (3, None, "user"),
    ]  # fmt: skip
    assert turns[2].text == "It's water.\nMuch."
    assert turns[2].ids == (1, 70_000, 3)
    assert (turns[2].finish_reason, turns[2].numbers) == ("stop", {"decode": {"tokens": 3}})
    assert session.conversation.leaf == 2


def test_a_later_schema_is_reached_wholly_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = filled(path)
    add = "ALTER TABLE session ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'"
    today = database.MIGRATIONS
    monkeypatch.setattr(database, "MIGRATIONS", (*today, (add, "no SQL at all")))
    with pytest.raises(SessionError):
        SessionStore(path)
    monkeypatch.setattr(database, "MIGRATIONS", today)
    assert SessionStore(path).load(number).meta.name == "kept"
    monkeypatch.setattr(database, "MIGRATIONS", (*today, (add,)))
    with SessionStore(path) as store:
        assert store.load(number).meta.name == "kept"
        assert asked(path, "SELECT colour FROM session") == "blue"


def test_a_newer_database_is_refused_and_left_as_it_is(path: Path) -> None:
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SessionStoreNewer, match=r"version 99.*a later flashllm"):
        SessionStore(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_as_it_is(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SessionStoreBroken, match="another program's"):
        SessionStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not SQLite, " * 100, b"SQLite format 3\x00" + b"\xff" * 4080]
)
def test_a_damaged_file_is_named_kept_and_set_aside_when_asked(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SessionStoreBroken, match="sessions set-aside") as refused:
        SessionStore(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content
    (moved,) = set_aside(path)
    assert moved.read_bytes() == content
    SessionStore(path).close()


def test_damage_found_while_reading_is_told(path: Path) -> None:
    with SessionStore(path) as store:
        number = store.create()
        store.save_turn(number, Turn(1, None, "user", "x" * 100_000))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(SessionStoreBroken, match="damaged"), SessionStore(path) as store:
        store.load(number)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE turn SET parent = 1 WHERE id = 1", "answers turn 1, which is not before it"),
        ("UPDATE turn SET role = 'system'", "neither user nor assistant"),
        ("UPDATE turn SET role = 'assistant'", "turn 1 is an answer, and not to a question"),
        ("UPDATE turn SET ids = x'010203'", "ids of its tokens"),
        ("UPDATE turn SET numbers = '[1]'", "numbers are damaged"),
        ("UPDATE turn SET created = 'soon'", "is no number"),
        ("UPDATE session SET settings = '{'", "settings or numbers are damaged"),
    ],
)
def test_rows_that_do_not_hold_together(path: Path, statement: str, expected: str) -> None:
    number = filled(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement)
    connection.close()
    with (
        SessionStore(path) as store,
        pytest.raises(SessionStoreBroken, match=f"conversation 1 does not .*{expected}"),
    ):
        store.load(number)


@pytest.mark.parametrize("column", ["name", "model", "system", "created", "updated"])
def test_a_column_that_lost_its_value_is_empty(path: Path, column: str) -> None:
    number = filled(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
    connection.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"UPDATE session SET {column} = NULL")
    connection.close()
    with SessionStore(path) as store:
        (summary,) = store.list()
        assert getattr(summary, column) in ("", 0)
        assert len(store.load(number).conversation.turns) == summary.turns
        store.export_markdown(number)


def test_a_locked_database_is_told_soon_and_works_again(path: Path) -> None:
    number = filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    with SessionStore(path, busy_seconds=0.05) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionError, match="another program is writing"):
            store.rename(number, "x")
        assert store.load(number).meta.name == "kept"  # readers do not wait
        other.execute("ROLLBACK")
        store.rename(number, "x")
        assert store.load(number).meta.name == "x"
    other.close()


def test_many_at_once_open_it_for_the_first_time(path: Path) -> None:
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with SessionStore(path, busy_seconds=20) as store:
                for _ in range(5):
                    store.create(name=name)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with SessionStore(path) as store:
        assert len(store.list()) == 30


def test_a_full_disk_loses_nothing_that_was_there(path: Path) -> None:
    """One page more each time, until it fits: each failure leaves what there was."""
    number = filled(path)
    refusals = 0
    with SessionStore(path) as store:
        pages = asked(path, "PRAGMA page_count")
        long = Turn(2, 1, "assistant", "x" * 40_000)
        while refusals < 100:
            store._connection.execute(f"PRAGMA max_page_count = {pages + refusals}")
            try:
                store.save_turn(number, long)
            except SessionError as error:
                words = str(error)
            else:
                break
            assert "no space left" in words
            assert list(store.load(number).conversation.turns) == [1]
            refusals += 1
        assert refusals >= 9
        assert store.load(number).conversation.turns[2] == long


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_an_io_error_of_a_full_disk_is_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """SQLite says "disk I/O error" where its log's index or a sync met the full disk."""
    filled(path)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(SessionError) as caught, database.session_errors(path):
            raise error
    assert ("no space left" in str(caught.value)) == (number != errno.EIO)
    with pytest.raises(SessionError, match="SQLITE_IOERR_SHMSIZE"), database.session_errors(path):
        raise error
    assert all(file.name.startswith(path.name) for file in path.parent.iterdir())


def test_a_damage_that_sqlite_quotes_is_told_though_it_is_no_text(path: Path) -> None:
    """Its message has the bytes of the schema, which Python cannot decode."""
    with SessionStore(path) as store:
        store.create(name="kept")
    content = path.read_bytes()
    assert content.count(b"CREATE TABLE session") == 1
    path.write_bytes(content.replace(b"CREATE TABLE session", b"CREATE T\x80BLE session"))
    with pytest.raises(SessionStoreBroken, match=r"is damaged .*not UTF-8.*sessions set-aside"):
        SessionStore(path)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SessionError, match="set FLASHLLM_HOME"):
        SessionStore(tmp_path / "file" / "chats.db")
    with pytest.raises(SessionError, match="set FLASHLLM_HOME"):
        SessionStore(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(SessionError, match="set FLASHLLM_HOME"):
            SessionStore(tmp_path / "chats.db")
    finally:
        tmp_path.chmod(0o700)


def test_setting_aside_takes_the_log_along(path: Path) -> None:
    store = SessionStore(path)
    number = store.create(name="in the log")
    moved = set_aside(path)
    store.close()
    assert len(moved) == 3
    assert time.strftime("%Y%m%d") in moved[0].name
    with SessionStore(moved[0]) as aside:
        assert aside.load(number).meta.name == "in the log"
    with SessionStore(path) as fresh:
        assert fresh.list() == []
    again = set_aside(path)  # within the same second
    assert len({*moved, *again}) == len(moved) + len(again)


def test_what_was_deleted_is_in_no_file(path: Path) -> None:
    with SessionStore(path), SessionStore(path) as store:  # one that stays open, as a chat does
        number = store.create(name="secret name")
        store.save_turn(number, Turn(1, None, "user", "secret words " * 1000))
        store.create(name="another")
        store.delete(number)
        left = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"secret" not in left
    assert b"another" in left
