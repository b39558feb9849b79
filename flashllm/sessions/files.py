"""Conversations in files: written for their owner alone, read up to a size that is no attack."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from flashllm.errors import CannotCreate, DestinationExists, NotASession, UsageError
from flashllm.sessions import exchange, markdown
from flashllm.sessions.records import Session

KINDS = ("json", "md")
# What `sanitize` would take away, and a reader of JSON gets back from its escape.
_ACTING = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def text_of(session: Session, kind: str) -> str:
    """The text of a file: `json` holds everything, `md` what is shown; both are safe to print."""
    if kind == "md":
        return markdown.to_markdown(session)
    text = json.dumps(exchange.to_json(session), indent=1, ensure_ascii=False)
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def write(path: Path, text: str, force: bool = False) -> None:
    """Writes a file that only its owner can read, over another one only with `force`.

    `DestinationExists`, `CannotCreate`.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise DestinationExists(f"{path}: is there already; choose another name") from error
    except OSError as error:
        raise CannotCreate(f"{path}: cannot be written: {error.strerror}") from error


def read(path: Path) -> object:
    """What a file of JSON holds, for `SessionStore.import_json`; `UsageError`, `NotASession`."""
    try:
        with path.open("rb") as stream:
            content = stream.read(exchange.FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return exchange.parse(content)
    except NotASession as error:
        raise NotASession(f"{path}: {error}") from error
