"""Sessions in files: how one is written and read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from flashllm.errors import UsageError
from flashllm.sanitize import sanitize_line
from flashllm.sessions import Session, SessionStore, files


def export_name(session_id: int, name: str, kind: str) -> str:
    """A file's name for a session: letters, digits and dashes."""
    words = re.sub(r"\W+", "-", sanitize_line(name).lower()).strip("-")[:40]
    return f"flashllm-{session_id}{'-' + words if words else ''}.{kind}"


def export(store: SessionStore, session_id: int, path: str) -> str:
    """Writes a session into a new file, as its suffix says; returns the file's path."""
    kind = Path(path).suffix.removeprefix(".")
    if kind not in files.KINDS:
        raise UsageError(f"{path!r}: end the name in .md or .json")
    return write_session(store.load(session_id), path, kind)


def write_session(session: Session, path: str, kind: str) -> str:
    """Writes a session into a new file, as `kind` says: md or json; returns the file's path."""
    target = _path(path)
    files.write(target, files.text_of(session, kind))
    return str(target)


def import_file(store: SessionStore, path: str) -> int:
    """Reads a session from a file that was exported as JSON; returns its new id."""
    return store.import_json(files.read(_path(path)))


def _path(text: str) -> Path:
    """Of what was typed; a home of a user that nobody knows is a name as any other."""
    if "\0" in text:
        raise UsageError(f"{text!r}: no file can be called that")
    return Path(os.path.expanduser(text))
