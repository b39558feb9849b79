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
    whole_share: float | None = None
    """Of all phases together; None where it is not said."""
    whole_seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class PlanEvent:
    """What will be done, before it begins: lines for people."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SummaryEvent:
    """What was made: lines for people."""

    lines: tuple[str, ...]


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


Event = PhaseEvent | PlanEvent | SummaryEvent | WarningEvent | EndEvent | TextEvent
_PHASE_KEYS = {"event", "phase", "done_bytes", "total_bytes", "seconds"}
_WHOLE_KEYS = {"whole_share", "whole_seconds_left"}
LINES_MAX = 20


def parse_event(line: bytes) -> Event:
    """The event of a line; a line that is not a valid event is text."""
    try:
        values = parse_object(line, _SAID, LayoutError, depth_max=2)
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
    elif kind in ("plan", "summary") and (lines := _lines(values.get("lines"))):
        found = PlanEvent(lines) if kind == "plan" else SummaryEvent(lines)
    elif kind == "end" and set(values) == {"event"}:
        found = EndEvent()
    return found or TextEvent(clean(line.decode("utf-8", "replace")))


def _phase(values: dict[str, Any]) -> PhaseEvent | None:
    if set(values) not in (_PHASE_KEYS, _PHASE_KEYS | _WHOLE_KEYS):
        return None
    phase, done, total = values["phase"], values["done_bytes"], values["total_bytes"]
    seconds = values["seconds"]
    if not isinstance(phase, str) or type(done) is not int or type(total) is not int:
        return None
    if not _is_amount(seconds) or not 0 <= done <= total <= _BYTES_MOST or total == 0:
        return None
    if not set(values) >= _WHOLE_KEYS:
        return PhaseEvent(clean(phase), done, total, float(seconds))
    share, left = values["whole_share"], values["whole_seconds_left"]
    if not (_is_amount(share) and share <= 1 and _is_amount(left)):
        return None
    return PhaseEvent(clean(phase), done, total, float(seconds), float(share), float(left))


def _is_amount(value: object) -> bool:
    """Whether it is a finite number of 0 or more."""
    return type(value) in (int, float) and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


def _lines(value: object) -> tuple[str, ...]:
    """Texts, made clean; () where it is something else."""
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        return ()
    return tuple(clean(line) for line in value[:LINES_MAX])
