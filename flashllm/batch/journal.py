"""`OUT.partial`: says of which rows, model and settings an unfinished file of answers is.

One line of JSON, whole or absent, written before the first answer and removed after the last;
behind it, answers that wait for those of earlier rows.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import DestinationExists, ReadFailed
from flashllm.untrusted.strict_json import loads_strict

VERSION = 1
HEADER_BYTES_MAX = 1 << 20
FINISHED_ATTRIBUTE = "user.flashllm.batch"
"""Of a finished file of answers, where file systems have such attributes: the journal's header. A
batch that was killed after its last answer is then found to be done, and nobody else's."""


def journal_path(output: Path) -> Path:
    """Beside the file of answers."""
    return output.with_name(f"{output.name}.partial")


@dataclass(frozen=True, slots=True)
class BatchKey:
    """All that the answers of a batch depend on; plain values only."""

    rows_hash: str
    """Of the bytes of the file of rows."""
    model_hash: str
    settings: Mapping[str, Any]
    """By name: how rows are answered that do not say it, and how the answers are written."""

    def differences(self, kept: BatchKey) -> list[str]:
        """What is different now, in words: `temp: 0.0 before, 0.7 now`."""
        found = []
        if kept.rows_hash != self.rows_hash:
            found.append("its rows were others")
        if kept.model_hash != self.model_hash:
            found.append("its model was another")
        for name in sorted({*self.settings, *kept.settings}):
            before, now = kept.settings.get(name), self.settings.get(name)
            if before != now:
                found.append(f"{name}: {before!r:.40} before, {now!r:.40} now")
        return found


@dataclass(frozen=True, slots=True)
class Header:
    """The journal's first line."""

    key: BatchKey
    created: int
    """Seconds since 1970 at which the batch began."""

    def line(self) -> bytes:
        """As it is written, its end included."""
        values = {
            "flashllm_batch": VERSION,
            "created": self.created,
            "rows_hash": self.key.rows_hash,
            "model_hash": self.key.model_hash,
            "settings": dict(self.key.settings),
        }
        return json.dumps(values).encode() + b"\n"


def read_header(path: Path) -> Header | None:
    """The header of a journal; None if there is no such file.

    `DestinationExists` if it is no journal, or one of a later version; `ReadFailed`.
    """
    try:
        with path.open("rb") as file:
            raw = file.readline(HEADER_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReadFailed(f"{path}: cannot be read: {error.strerror}") from error
    header = _header_of(raw)
    if header is None:
        raise DestinationExists(
            f"{path}: is not what this version of `flashllm batch` keeps of an unfinished batch;"
            " rename or remove it, or name other answers"
        )
    return header


def mark_finished(output: Path, header: Header) -> None:
    """Notes on a file of answers of which batch it is, where that can be noted."""
    with contextlib.suppress(AttributeError, OSError):  # not everywhere are there attributes
        os.setxattr(output, FINISHED_ATTRIBUTE, header.line())


def unmark_finished(output: Path) -> None:
    """Removes that note."""
    with contextlib.suppress(AttributeError, OSError):
        os.removexattr(output, FINISHED_ATTRIBUTE)


def finished_header(output: Path) -> Header | None:
    """What `mark_finished` noted; None where nothing was."""
    try:
        return _header_of(os.getxattr(output, FINISHED_ATTRIBUTE))
    except (AttributeError, OSError):
        return None


def _header_of(raw: bytes) -> Header | None:
    try:
        values = loads_strict(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get("flashllm_batch") != VERSION:
        return None
    rows, model, settings = (values.get(n) for n in ("rows_hash", "model_hash", "settings"))
    created = values.get("created")
    if type(created) is not int or not isinstance(settings, dict):
        return None
    return Header(BatchKey(str(rows), str(model), settings), created)
