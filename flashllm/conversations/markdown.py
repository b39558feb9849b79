"""A conversation as Markdown, for people: the branch that is shown, safe to print."""

from __future__ import annotations

import time

from flashllm.conversations.records import Session
from flashllm.untrusted.terminal import sanitize, sanitize_line

_HEADINGS = {"user": "You", "assistant": "Answer"}


def to_markdown(session: Session) -> str:
    """A heading for each turn, and its text without what acts on a terminal."""
    meta = session.meta
    title = sanitize_line(meta.name or meta.preview or f"Conversation {meta.id}")
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(meta.updated))
    model = sanitize_line(meta.model)
    parts = [f"# {title}", f"*{model}, {date}*" if model else f"*{date}*"]
    if meta.system:
        parts.append("\n".join(f"> {line}" for line in sanitize(meta.system).splitlines()))
    for turn in session.conversation.path():
        parts += [f"## {_HEADINGS[turn.role]}", sanitize(turn.text).strip("\n")]
        if turn.role == "assistant" and turn.finish_reason != "stop":
            parts.append("*(incomplete)*")
    return "\n\n".join(part for part in parts if part) + "\n"
