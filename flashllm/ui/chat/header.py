"""The first line: which model is open, and what the engine does."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from flashllm.untrusted.terminal import sanitize_line

NAME = "flashllm"
NOTHING_OPEN = "no model is open"
SPACE = 2
"""Columns between the model and the state, at least."""


class EngineHeader(Widget):
    """The model on the left, the state on the right; the state is never cut for the model."""

    model: reactive[str] = reactive("")
    """The open model in words; empty where none is."""
    state: reactive[str] = reactive("")

    def __init__(self, state: str) -> None:
        super().__init__()
        self.set_reactive(EngineHeader.state, state)

    def render(self) -> Content:
        """One line, as wide as the screen."""
        return header_line(sanitize_line(self.model), sanitize_line(self.state), self.size.width)


def header_line(model: str, state: str, width: int) -> Content:
    """`flashllm  demo, f16, ...      ready`, in exactly `width` columns where that is possible."""
    left = Content(f"{NAME}  {model or NOTHING_OPEN}")
    right = Content.styled(state, "bold").truncate(max(width, 1), ellipsis=True)
    room = width - right.cell_length - SPACE
    if room < len(NAME):
        return right
    left = left.truncate(room, ellipsis=True)
    return Content.assemble(left, " " * (width - left.cell_length - right.cell_length), right)
