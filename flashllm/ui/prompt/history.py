"""The history of inputs, of this session and earlier ones."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from pathlib import Path

ENTRIES_MAX = 500
ENTRY_CHARACTERS_MAX = 20_000
"""A longer text is remembered while the chat is open, but not written to the file."""
MEMORY_BYTES_MAX = 128 << 10
"""Of all entries that are remembered; of older ones the last that fit, and the last one always. One
emoji makes four bytes of each character of its entry."""
FILE_BYTES_MAX = 4 << 20
"""A longer file is replaced by its last entries."""
_log = logging.getLogger("flashllm")


class InputHistory:
    """Entries from the oldest to the newest, and a place among them; a file that fails is no loss.

    One JSON string a line, added at the end, so that several chats can write.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries = _last(_read(path)) if path is not None else []
        self._place = len(self._entries)
        self._draft = ""

    def add(self, text: str) -> None:
        """Something was sent."""
        if text.strip() and self._entries[-1:] != [text]:
            self._entries = _last([*self._entries, text])
            if self._path is not None and len(text) <= ENTRY_CHARACTERS_MAX:
                _write(self._path, text)
        self._place, self._draft = len(self._entries), ""

    def earlier(self, draft: str) -> str | None:
        """The entry before; `draft` comes back after the newest one."""
        if self._place == 0:
            return None
        if self._place == len(self._entries):
            self._draft = draft
        self._place -= 1
        return self._entries[self._place]

    def later(self) -> str | None:
        """The entry after, and the draft at the end."""
        if self._place == len(self._entries):
            return None
        self._place += 1
        return self._entries[self._place] if self._place < len(self._entries) else self._draft


def _last(entries: list[str]) -> list[str]:
    kept, nbytes = 0, 0
    for entry in reversed(entries[-ENTRIES_MAX:]):
        nbytes += sys.getsizeof(entry)
        if kept and nbytes > MEMORY_BYTES_MAX:
            break
        kept += 1
    return entries[len(entries) - kept :]


def _read(path: Path) -> list[str]:
    entries: list[str] = []
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - FILE_BYTES_MAX))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("the history of inputs cannot be read: %s", error)
        return entries
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # cut off by a crash, or not ours
            entry = json.loads(line)
            if isinstance(entry, str):
                entries.append(entry)
    return entries


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > FILE_BYTES_MAX:
            kept = [json.dumps(entry) + "\n" for entry in _last(_read(path))]
            path.write_text("".join(kept), encoding="utf-8")
        # What people ask a model is nobody else's business.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(file, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(text) + "\n")
    except OSError as error:
        _log.warning("the history of inputs cannot be written: %s", error)
