"""Conversations in files: readable by their owner only, and read up to a bounded size."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from flashllm.conversations import exchange, markdown
from flashllm.conversations.records import Session
from flashllm.conversations.store import SessionStore
from flashllm.errors import CannotCreate, DestinationExists, NotASession, UsageError
from flashllm.system.atomic_file import write_whole
from flashllm.untrusted.terminal import sanitize_line

KINDS = ("json", "md")
OWNER_ONLY = 0o600
# Characters that `sanitize` would remove; escaped, a JSON reader gets them back.
_ACTING = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def text_of(session: Session, kind: str) -> str:
    """The text of a file: `json` holds everything, `md` what is shown; both are safe to print."""
    if kind == "md":
        return markdown.to_markdown(session)
    text = json.dumps(exchange.to_json(session), indent=1, ensure_ascii=False)
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def write(path: Path, text: str, force: bool = False) -> None:
    """Writes a file that only its owner can read; replaces an existing one only with `force`.

    If writing fails, there is no file, or the previous one. `DestinationExists`, `CannotCreate`.
    """
    content = text.encode("utf-8", "replace")
    try:
        if force and path.is_file():
            write_whole(path.resolve(), content, OWNER_ONLY)  # not over a link to it
        else:
            _write_new(path, content, os.O_CREAT | (0 if force else os.O_EXCL))
    except FileExistsError as error:
        raise DestinationExists(f"{path}: is there already; choose another name") from error
    except OSError as error:
        raise CannotCreate(f"{path}: cannot be written: {error.strerror}") from error


def _write_new(path: Path, content: bytes, flags: int) -> None:
    """Writes a new file, or a device; removes a file that cannot be written completely."""
    descriptor = os.open(path, os.O_WRONLY | flags, OWNER_ONLY)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
    except OSError:
        if path.is_file():
            path.unlink()
        raise


def read(path: Path) -> object:
    """The content of a JSON file, for `SessionStore.import_json`; `UsageError`, `NotASession`."""
    try:
        with path.open("rb") as stream:
            content = stream.read(exchange.FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return exchange.parse(content)
    except NotASession as error:
        raise NotASession(f"{path}: {error}") from error


def export_name(session_id: int, name: str, kind: str) -> str:
    """A file's name for a session: letters, digits and dashes."""
    words = re.sub(r"\W+", "-", sanitize_line(name).lower()).strip("-")[:40]
    return f"flashllm-{session_id}{'-' + words if words else ''}.{kind}"


def export(store: SessionStore, session_id: int, path: str) -> str:
    """Writes a session into a new file, as its suffix says; returns the file's path."""
    kind = Path(path).suffix.removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"{path!r}: end the name in .md or .json")
    return write_session(store.load(session_id), path, kind)


def write_session(session: Session, path: str, kind: str) -> str:
    """Writes a session into a new file, as `kind` says: md or json; returns the file's path."""
    target = _path(path)
    write(target, text_of(session, kind))
    return str(target)


def import_file(store: SessionStore, path: str) -> int:
    """Reads a session from a file that was exported as JSON; returns its new id."""
    return store.import_json(read(_path(path)))


def _path(text: str) -> Path:
    """The path that was typed; `~user` of an unknown user is an ordinary name."""
    if "\0" in text:
        raise UsageError(f"{text!r}: no file can be called that")
    return Path(os.path.expanduser(text))
