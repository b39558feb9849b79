"""Sessions in files: how one is written and read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flashllm.errors import CannotCreate, UsageError
from flashllm.sanitize import sanitize_line
from flashllm.sessions import Session, SessionStore, exchange, markdown

KINDS = ("md", "json")
IMPORT_BYTES_MOST = 64 << 20


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
    target = Path(path).expanduser()
    if kind == "json":
        text = json.dumps(exchange.to_json(session), ensure_ascii=False, indent=1) + "\n"
    else:
        text = markdown.to_markdown(session)
    try:
        with target.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise CannotCreate(f"{target}: is there already; choose another name") from None
    except OSError as error:
        raise CannotCreate(f"{target}: cannot be written ({error.strerror})") from error
    return str(target)


def import_file(store: SessionStore, path: str) -> int:
    """Reads a session from a file that was exported as JSON; returns its new id."""
    source = Path(path).expanduser()
    try:
        with source.open("rb") as file:
            content = file.read(IMPORT_BYTES_MOST + 1)
        if len(content) > IMPORT_BYTES_MOST:
            raise UsageError(f"{source}: is longer than {IMPORT_BYTES_MOST >> 20} MiB")
        value = json.loads(content)
    except OSError as error:
        raise UsageError(f"{source}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: is no JSON file that was exported here") from error
    if not isinstance(value, dict):
        raise UsageError(f"{source}: is no session that was exported here")
    return store.import_json(value)
