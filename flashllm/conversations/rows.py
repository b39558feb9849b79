"""Converts conversations to rows of the database, and rows back, which are checked."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flashllm.conversations import exchange
from flashllm.conversations.records import Session, SessionSummary
from flashllm.conversations.tree import Turn, restored
from flashllm.errors import NotASession
from flashllm.untrusted.terminal import sanitize_line

PREVIEW_CHARACTERS = 120


def head_row(
    *,
    name: str | None,
    model: str | None,
    system: str | None,
    settings: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Columns of a session; absent for what is not given."""
    given = {"name": name, "model": model, "system": system}
    row = {column: storable(text) for column, text in given.items() if text is not None}
    if "name" in row:
        row["name"] = row["name"][: exchange.NAME_CHARACTERS_MAX]
    if settings is not None:
        row["settings"] = _json(settings)
    return row


def turn_row(session_id: int, turn: Turn) -> dict[str, object]:
    """A turn's columns."""
    reason = turn.finish_reason
    return {
        "session": session_id,
        "id": turn.id,
        "parent": turn.parent,
        "role": turn.role,
        "text": storable(turn.text),
        "ids": struct.pack(f"<{len(turn.ids)}i", *turn.ids),
        "finish_reason": None if reason is None else storable(reason),
        "created": turn.created,
        "numbers": _json(turn.numbers),
    }


def summary_of(row: Sequence[Any]) -> SessionSummary:
    """The summary in a row of the list; its last column is the beginning of the first question."""
    number, name, model, system, created, updated, turns, begin = row
    preview = sanitize_line(begin)[:PREVIEW_CHARACTERS]
    created, updated = (min(max(at, 0.0), exchange.SECONDS_MAX) for at in (created, updated))
    return SessionSummary(number, name, model, system, created, updated, turns, preview)


def session_of(
    meta: SessionSummary, settings: str, leaf: int | None, rows: Iterable[Sequence[Any]]
) -> Session:
    """The conversation of these rows, turns by id; `NotASession` if they are inconsistent.

    Each row is dropped when the next one is asked for: as text they take ten times as much.
    """
    one_of_each_id: dict[int, int] = {}
    turns = [_turn(row, one_of_each_id) for row in rows]
    exchange.check_tree(turns)
    if turns and leaf not in {turn.id for turn in turns}:
        leaf = turns[-1].id  # the newest: one is shown, whatever happened to the one that was
    conversation = restored(meta.system, turns, leaf if turns else None)
    return Session(meta, conversation, _object(settings))


def _turn(row: Sequence[Any], one_of_each_id: dict[int, int]) -> Turn:
    # Ids of tokens are numbers of 32 bytes each; of a long conversation most are the same ones.
    number, parent, role, text, ids, finish_reason, created, numbers = row
    if not isinstance(ids, bytes) or len(ids) % 4:
        raise NotASession(f"turn {number}: the ids of its tokens are damaged")
    return exchange.turn_of(
        {
            "id": number,
            "parent": parent,
            "role": role,
            "text": text,
            "ids": [
                one_of_each_id.setdefault(one, one)
                for one in struct.unpack(f"<{len(ids) // 4}i", ids)
            ],
            "finish_reason": finish_reason,
            "created": created,
            "numbers": _object(numbers),
        }
    )


def storable(text: str) -> str:
    """The text without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _json(value: Mapping[str, Any]) -> str:
    """A JSON object; values that JSON cannot hold become None or text.

    An object that is too long to be read again is dropped, so that it cannot spoil the
    conversation.
    """
    text = json.dumps(dict(value), default=str)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _: None))
    return text if len(text) <= exchange.OBJECT_CHARACTERS_MAX else "{}"


def _object(text: object) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise NotASession("settings or numbers are damaged")
    return value
