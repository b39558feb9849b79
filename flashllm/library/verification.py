"""When a model's bytes were checked last: `flashllm verify` keeps it, `flashllm doctor` says it.

Kept in the user's cache directory, never in the model. It is true as long as manifest, sizes and
times of the files are those that were checked.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from flashllm.errors import LayoutError
from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.system.atomic_file import write_whole
from flashllm.system.paths import cache_dir
from flashllm.untrusted.strict_json import parse_object

FILE_BYTES_MAX = 1 << 20
FILES_MAX = 100


def keep_verified(directory: Path) -> None:
    """Notes that every byte of a model was found as its manifest says, now."""
    state = _state(directory)
    if state is None:
        return
    record = {"date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "state": state}
    file = _record_file(directory)
    # Only a note: where it cannot be kept, the model counts as unchecked.
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(record).encode())


def last_verified(directory: Path) -> str | None:
    """When it was checked, in ISO 8601; None if it never was, or has changed since."""
    file = _record_file(directory)
    try:
        with file.open("rb") as stream:
            record: dict[str, Any] = parse_object(stream.read(FILE_BYTES_MAX), file, LayoutError)
    except (OSError, LayoutError):
        return None
    date = record.get("date")
    is_same = record.get("state") == _state(directory)
    return date[:40] if isinstance(date, str) and is_same else None


def _record_file(directory: Path) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]
    return cache_dir() / "verified" / f"{name}.json"


def _state(directory: Path) -> dict[str, Any] | None:
    """The manifest's hash, and size and time of each file; None where they cannot be looked at."""
    try:
        manifest = hashlib.sha256((directory / MANIFEST_FILE).read_bytes()).hexdigest()
        names = sorted(os.listdir(directory))[:FILES_MAX]
        files = {name: (directory / name).stat() for name in names}
    except OSError:
        return None
    # Lists, as JSON gives them back.
    return {
        "manifest": manifest,
        "files": {name: [found.st_size, found.st_mtime_ns] for name, found in files.items()},
    }
