"""Records of a saved conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flashllm.conversations.tree import Conversation


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A row of a list of conversations; times in seconds since 1970.

    Name, model and system prompt are unchanged input: sanitise them before they are shown.
    """

    id: int
    name: str
    model: str
    """Directory of the model, so that it can be opened again; empty if unknown."""
    system: str
    created: float
    updated: float
    turns: int
    """Questions and answers, of all branches."""
    preview: str
    """The beginning of the first question, sanitised, on one line."""


@dataclass(slots=True)
class Session:
    """A conversation with its summary and settings."""

    meta: SessionSummary
    conversation: Conversation
    settings: dict[str, Any] = field(default_factory=dict)
