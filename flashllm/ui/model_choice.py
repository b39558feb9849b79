"""Which model the chat is to open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A converted model; without a path, the one that comes with the project."""

    path: Path | None = None
    name: str = "the demo"
