"""Conversations as JSON: written with all branches and numbers, and checked strictly when read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flashllm.conversations.packed_numbers import PackedNumbers
from flashllm.conversations.records import Session, SessionSummary
from flashllm.conversations.tree import Turn, restored
from flashllm.errors import NotASession
from flashllm.untrusted.strict_json import loads_strict

TURNS_MAX = 20_000
TEXT_CHARACTERS_MAX = 16 << 20
NAME_CHARACTERS_MAX = 1000
IDS_MAX = 1 << 20
OBJECT_CHARACTERS_MAX = 1 << 16
SECONDS_MAX = 1e11
"""The year 5138; a later time is a mistake, such as milliseconds."""

_ID_MAX = (1 << 31) - 1
_SUMS = ("prompt_tokens", "tokens")
"""The numbers of a turn that the chat computes with."""
_TURN_KEYS = {"id", "parent", "role", "text", "ids", "finish_reason", "created", "numbers"}


def check_keys(value: object, keys: set[str], where: str) -> Mapping[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(value, dict):
        raise NotASession(f"{where} is no object")
    if missing := sorted(keys - value.keys()):
        raise NotASession(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(value.keys() - keys):
        raise NotASession(f"{where} has {unknown[0][:80]!r}, which nobody here knows")
    return value


def text_of(value: object, where: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """A text of bounded size without lone surrogates."""
    if not isinstance(value, str):
        raise NotASession(f"{where} is no text")
    if len(value) > characters_max:
        raise NotASession(f"{where} is longer than {characters_max} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotASession(f"{where} holds half a character (a lone surrogate)") from None
    return value


def whole_of(value: object, where: str, least: int = 0) -> int:
    """A whole number that fits into four bytes."""
    if type(value) is not int or not least <= value <= _ID_MAX:
        raise NotASession(f"{where} is no whole number from {least} to {_ID_MAX}")
    return value


def time_of(value: object, where: str) -> float:
    """Seconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NotASession(f"{where} is no number")
    if not 0 <= value <= SECONDS_MAX:
        raise NotASession(f"{where} is no time in seconds since 1970")
    return float(value)


def object_of(value: object, where: str) -> dict[str, Any]:
    """An object of bounded size, with values that JSON can hold."""
    if not isinstance(value, dict):
        raise NotASession(f"{where} is no object")
    try:
        text = json.dumps(value, allow_nan=False)
        text.encode()
    except (ValueError, TypeError, RecursionError):
        raise NotASession(f"{where} holds what JSON has no form for") from None
    if len(text) > OBJECT_CHARACTERS_MAX:
        raise NotASession(f"{where} is longer than {OBJECT_CHARACTERS_MAX} characters")
    return value


def turn_of(value: object) -> Turn:
    """A turn, with every field checked, but not yet its place in the tree."""
    fields = check_keys(value, _TURN_KEYS, "a turn")
    number = whole_of(fields["id"], "a turn's id", least=1)
    where = f"turn {number}"
    role = fields["role"]
    if role not in ("user", "assistant"):
        raise NotASession(f"{where}: its role is neither user nor assistant")
    ids = fields["ids"]
    if not isinstance(ids, list) or len(ids) > IDS_MAX:
        raise NotASession(f"{where}: its ids are no list of {IDS_MAX} at most")
    numbers = object_of(fields["numbers"], f"{where}: its numbers")
    for name in numbers.keys() & set(_SUMS):
        whole_of(numbers[name], f"{where}: {name} of its numbers")
    parent, reason = fields["parent"], fields["finish_reason"]
    return Turn(
        number,
        None if parent is None else whole_of(parent, f"{where}: its parent", least=1),
        role,
        text_of(fields["text"], f"{where}: its text"),
        tuple(whole_of(token, f"{where}: an id of a token") for token in ids),
        None if reason is None else text_of(reason, f"{where}: its finish_reason", 64),
        time_of(fields["created"], f"{where}: its time"),
        PackedNumbers(numbers) if numbers else numbers,
    )


def check_tree(turns: Sequence[Turn]) -> None:
    """Ids occur once, parents come before their children (so there is no loop), answers answer."""
    seen: dict[int | None, str] = {}
    for turn in turns:
        if turn.id in seen:
            raise NotASession(f"turn {turn.id} occurs twice")
        if turn.parent is not None and turn.parent not in seen:
            raise NotASession(f"turn {turn.id} answers turn {turn.parent}, which is not before it")
        if turn.parent is not None and turn.parent > turn.id:
            raise NotASession(f"turn {turn.id} is older than turn {turn.parent}, which it answers")
        if turn.role == "assistant" and seen.get(turn.parent) != "user":
            raise NotASession(f"turn {turn.id} is an answer, and not to a question")
        seen[turn.id] = turn.role


FORMAT = "flashllm-session"
VERSION = 1
FILE_BYTES_MAX = 64 << 20

_KEYS = {"format", "version", "name", "model", "system", "settings", "created", "updated"}
_KEYS |= {"leaf", "turns"}


def to_json(session: Session) -> dict[str, Any]:
    """A whole conversation without its id, which belongs to this database."""
    meta, conversation = session.meta, session.conversation
    turns = [
        asdict(turn) | {"ids": list(turn.ids), "numbers": dict(turn.numbers)}
        for _, turn in sorted(conversation.turns.items())
    ]
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
        "turns": turns,
    }


def from_json(value: object) -> Session:
    """The conversation that `to_json` wrote; `NotASession` says what is wrong otherwise."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise NotASession("this is no conversation that flashllm exported as JSON")
    if value.get("version") != VERSION:
        raise NotASession(
            f"this conversation has version {str(value.get('version'))[:20]}, and only {VERSION} "
            "is known here; a later flashllm can read it"
        )
    fields = check_keys(value, _KEYS, "the conversation")
    if not isinstance(fields["turns"], list) or len(fields["turns"]) > TURNS_MAX:
        raise NotASession(f"its turns are no list of {TURNS_MAX} at most")
    turns = [turn_of(turn) for turn in fields["turns"]]
    check_tree(turns)
    leaf = fields["leaf"]
    if leaf is not None and whole_of(leaf, "its leaf", 1) not in {one.id for one in turns}:
        raise NotASession(f"its leaf, turn {leaf}, does not exist")
    if leaf is None and turns:
        raise NotASession("it has turns, and no leaf that says which of them are shown")
    meta = SessionSummary(
        id=0,
        name=text_of(fields["name"], "its name", NAME_CHARACTERS_MAX),
        model=text_of(fields["model"], "its model", NAME_CHARACTERS_MAX * 5),
        system=text_of(fields["system"], "its system prompt"),
        created=time_of(fields["created"], "created"),
        updated=time_of(fields["updated"], "updated"),
        turns=len(turns),
        preview="",
    )
    settings = object_of(fields["settings"], "its settings")
    return Session(meta, restored(meta.system, turns, leaf), settings)


def parse(content: bytes) -> object:
    """Strict JSON from a file: UTF-8, no name twice, no NaN, not too large, not too deep."""
    if len(content) > FILE_BYTES_MAX:
        raise NotASession(f"the file is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return loads_strict(content)
    except UnicodeDecodeError as error:
        raise NotASession(f"the file is not UTF-8 (at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise NotASession(
            f"the file is no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from error
    except (ValueError, RecursionError) as error:  # a name twice, NaN, too many digits, too deep
        raise NotASession(f"the file cannot be read as JSON: {str(error)[:100]}") from error
