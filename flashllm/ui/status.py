"""The status line: what the engine does, and what it costs."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from flashllm.sanitize import sanitize_line
from flashllm.ui.laid_out_once import LaidOutOnce
from flashllm.ui.statistics import join_parts


class StatusLine(LaidOutOnce, Widget):
    """One line of parts, the most wanted first; what does not fit is left out."""

    parts: reactive[tuple[str, ...]] = reactive(())

    def render(self) -> Content:
        """The parts that fit."""
        return Content(join_parts([sanitize_line(part) for part in self.parts], self.size.width))
