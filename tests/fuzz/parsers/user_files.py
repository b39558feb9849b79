"""Targets: the user's own files: rows, conversations, their exports, profiles, config.toml."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from typing import Any, get_args

import pytest
from hypothesis import strategies as st

from flashllm.batch.answer_lines import AnswerForm, KeptAnswer, RowAnswer, read_answer
from flashllm.batch.row import TOKENS_MAX, Row, RowDefaults, RowFailure, RowForm
from flashllm.batch.row_line import form_of, read_row
from flashllm.conversations import exchange
from flashllm.conversations.database import SIDE_FILES
from flashllm.conversations.store import SessionStore
from flashllm.engine.sampling import StopMatcher
from flashllm.errors import ConfigError, NotASession, ProfileError, SessionError, UsageError
from flashllm.hardware import machine_profile
from flashllm.settings.file import read_config

from .changes import changed_bytes, changed_json
from .files import folder
from .target import Target, corpus


def _check_exchange(raw: bytes) -> None:
    try:
        session = exchange.from_json(exchange.parse(raw))
    except NotASession:
        return
    written = exchange.to_json(session)
    assert exchange.to_json(exchange.from_json(json.loads(json.dumps(written)))) == written


# The database

ODD_COLUMNS: tuple[Any, ...] = (
    None, 0, 1, -1, 2, 1 << 40, (1 << 63) - 1, 0.5, -1e300, 1e300, float("inf"), "", "x", "{}",
    "[]", '{"tokens": -1}', '{"a": NaN}', "{" * 300, "user", "assistant", b"", b"\xff", b"\x01\x00",
    b"\x01\x00\x00\x00", b"\xff\xff\xff\xff", "\x1b[2J", "a\x00b",
)  # fmt: skip
SESSION = ("name", "model", "system", "settings", "leaf", "created", "updated")
TURN = ("session", "id", "parent", "role", "text", "ids", "finish_reason", "created", "numbers")


@st.composite
def _databases(draw: st.DrawFn) -> bytes | list[tuple[str, str, Any]]:
    """The bytes of a database, or values for columns, whatever their types should be."""
    if draw(st.booleans()):
        return draw(changed_bytes(corpus("conversations_database"), 6))
    column = st.one_of(
        st.tuples(st.just("session"), st.sampled_from(SESSION)),
        st.tuples(st.just("turn"), st.sampled_from(TURN)),
    )
    change = st.tuples(column, st.sampled_from(ODD_COLUMNS))
    changes = draw(st.lists(change, min_size=1, max_size=3))
    return [(table, name, value) for (table, name), value in changes]


def _check_database(value: bytes | list[tuple[str, str, Any]]) -> None:
    path = folder("database") / "sessions.db"
    for side in SIDE_FILES:
        path.with_name(path.name + side).unlink(missing_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else corpus("conversations_database")[0])
    if not isinstance(value, bytes):
        _set_columns(str(path), value)
    with contextlib.suppress(SessionError, UsageError), SessionStore(path, busy_seconds=0) as store:
        store.check()
        for summary in store.list():
            assert isinstance(summary.preview, str)
            assert 0 <= summary.created <= exchange.SECONDS_MAX
            with contextlib.suppress(SessionError):
                session = store.load(summary.id)
                assert exchange.to_json(session) == store.export_json(summary.id)
                store.export_markdown(summary.id)
        store.list("hello")
        store.latest()
        store.find("1")


def _set_columns(path: str, changes: list[tuple[str, str, Any]]) -> None:
    """Puts values there that no constraint of the tables would let in."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(replace(sql, ' NOT NULL', ''), "
            "'UNIQUE (session, id)', 'CHECK (1)') WHERE type = 'table' AND name = 'session'"
        )
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'turn'"
        )
        connection.close()
        connection = sqlite3.connect(path, isolation_level=None)
        for table, name, value in changes:
            with contextlib.suppress(sqlite3.IntegrityError, OverflowError):
                connection.execute(f"UPDATE {table} SET {name} = ?", (value,))
    finally:
        connection.close()


def _check_settings_file(raw: bytes) -> None:
    path = folder("config-toml") / "config.toml"
    path.write_bytes(raw)
    problems: list[Any] = []
    found = read_config(path, problems)
    if problems:
        assert all(isinstance(problem, ConfigError) for problem in problems)
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            read_config(path)
    else:
        assert read_config(path) == found


def _check_profile(raw: bytes) -> None:
    path = folder("profile") / "profile.json"
    path.write_bytes(raw)
    try:
        profile = machine_profile.load(path)
    except ProfileError:
        return
    assert machine_profile.Profile.from_json(profile.to_json(), "again") == profile
    assert profile.best_threads(16384) >= 1
    assert profile.read_seconds(100, 1 << 20, 8) > 0
    assert profile.gap_bytes(16384, 8) >= 0


def _check_row(raw: bytes) -> None:
    """A row or a failure, in either form, whose line in the file of answers is read again."""
    for form in get_args(RowForm):
        row = read_row(raw, 3, form, RowDefaults())
        result = RowAnswer(row, [1], "text", "stop", 2) if isinstance(row, Row) else row
        line = AnswerForm(form, "model", 4).line(result)
        assert line.count(b"\n") == 1
        assert read_answer(line, form) == KeptAnswer(3, isinstance(row, RowFailure))
        if isinstance(row, Row):
            assert form_of(raw) == form
            assert 1 <= row.max_tokens < TOKENS_MAX
            StopMatcher(row.stop)
            assert bool(row.messages) != bool(row.prompt)


USER_FILE_TARGETS = (
    Target("batch_row", changed_json(corpus("batch_row")), _check_row),
    Target("conversation_file", changed_json(corpus("conversation_file")), _check_exchange),
    Target("conversations_database", _databases(), _check_database),
    Target("profile", changed_json(corpus("profile")), _check_profile),
    Target("config_toml", changed_bytes(corpus("config_toml")), _check_settings_file),
)
