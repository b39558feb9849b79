"""The lines that a conversion's process writes about its progress, read strictly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import LayoutError
from flashllm.json_schema import JSON_SCHEMA
from flashllm.library.formatting import clean
from flashllm.untrusted.strict_json import parse_object

LINE_BYTES_MAX = 64 << 10
_SAID = Path("progress")
_BYTES_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """Progress of a phase: bytes done, and seconds since it began."""

    phase: str
    done_bytes: int
    total_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """A warning; the conversion goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class EndEvent:
    """No phase follows."""


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A line that is no event: the text of an error."""

    text: str


Event = PhaseEvent | WarningEvent | EndEvent | TextEvent


def parse_event(line: bytes) -> Event:
    """The event of a line; a line that is not a valid event is text."""
    try:
        values = parse_object(line, _SAID, LayoutError, depth_max=1)
    except LayoutError:
        values = {}
    found: Event | None = None
    if values.pop("schema", JSON_SCHEMA) != JSON_SCHEMA:
        values = {}
    kind = values.get("event")
    if kind == "phase":
        found = _phase(values)
    elif kind == "warning" and set(values) == {"event", "text"}:
        found = WarningEvent(clean(values["text"])) if isinstance(values["text"], str) else None
    elif kind == "end" and set(values) == {"event"}:
        found = EndEvent()
    return found or TextEvent(clean(line.decode("utf-8", "replace")))


def _phase(values: dict[str, Any]) -> PhaseEvent | None:
    if set(values) != {"event", "phase", "done_bytes", "total_bytes", "seconds"}:
        return None
    phase, done, total = values["phase"], values["done_bytes"], values["total_bytes"]
    seconds = values["seconds"]
    if not isinstance(phase, str) or type(done) is not int or type(total) is not int:
        return None
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds < 0:
        return None
    if not 0 <= done <= total <= _BYTES_MOST or total == 0:
        return None
    return PhaseEvent(clean(phase), done, total, float(seconds))
