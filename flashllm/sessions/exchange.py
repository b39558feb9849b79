"""Conversations as JSON: written whole, branches and numbers included, and read with distrust."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from flashllm.conversation import restored
from flashllm.errors import NotASession
from flashllm.sessions import checks
from flashllm.sessions.records import Session, SessionSummary

FORMAT = "flashllm-session"
VERSION = 1
FILE_BYTES_MAX = 64 << 20

_KEYS = {"format", "version", "name", "model", "system", "settings", "created", "updated"}
_KEYS |= {"leaf", "turns"}


def to_json(session: Session) -> dict[str, Any]:
    """All of a conversation but its id, which is this database's."""
    meta, conversation = session.meta, session.conversation
    turns = [asdict(conversation.turns[number]) for number in sorted(conversation.turns)]
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": meta.name,
        "model": meta.model,
        "system": meta.system,
        "settings": session.settings,
        "created": meta.created,
        "updated": meta.updated,
        "leaf": conversation.leaf,
        "turns": [turn | {"ids": list(turn["ids"])} for turn in turns],
    }


def from_json(value: object) -> Session:
    """The conversation that `to_json` gave; `NotASession` says what is wrong with any other."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise NotASession("this is no conversation that flashllm exported as JSON")
    if value.get("version") != VERSION:
        raise NotASession(
            f"this conversation has version {str(value.get('version'))[:20]}, and only {VERSION} "
            "is known here; a later flashllm can read it"
        )
    fields = checks.check_keys(value, _KEYS, "the conversation")
    if not isinstance(fields["turns"], list) or len(fields["turns"]) > checks.TURNS_MAX:
        raise NotASession(f"its turns are no list of {checks.TURNS_MAX} at most")
    turns = [checks.turn_of(turn) for turn in fields["turns"]]
    checks.check_tree(turns)
    leaf = fields["leaf"]
    if leaf is not None and checks.whole_of(leaf, "its leaf", 1) not in {one.id for one in turns}:
        raise NotASession(f"its leaf, turn {leaf}, does not exist")
    if leaf is None and turns:
        raise NotASession("it has turns, and no leaf that says which of them are shown")
    meta = SessionSummary(
        id=0,
        name=checks.text_of(fields["name"], "its name", checks.NAME_CHARACTERS_MAX),
        model=checks.text_of(fields["model"], "its model", checks.NAME_CHARACTERS_MAX * 5),
        system=checks.text_of(fields["system"], "its system prompt"),
        created=checks.time_of(fields["created"], "created"),
        updated=checks.time_of(fields["updated"], "updated"),
        turns=len(turns),
        preview="",
    )
    settings = checks.object_of(fields["settings"], "its settings")
    return Session(meta, restored(meta.system, turns, leaf), settings)


def parse(content: bytes) -> object:
    """Strict JSON from a file: UTF-8, no name twice, no NaN, not too large, not too deep."""
    if len(content) > FILE_BYTES_MAX:
        raise NotASession(f"the file is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return json.loads(
            content.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise NotASession(f"the file is not UTF-8 (at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise NotASession(
            f"the file is no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from error
    except (ValueError, RecursionError) as error:  # too many digits, too deep
        raise NotASession(f"the file cannot be read as JSON: {str(error)[:100]}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotASession("a name occurs twice in an object")
    return value


def _refuse_constant(name: str) -> float:
    raise NotASession(f"{name} is no number of JSON")
