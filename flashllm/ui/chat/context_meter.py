"""How full the context is, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from flashllm.conversations.fit import ANSWER_ROOM_SHARE
from flashllm.ui.widgets.single_layout import SingleLayout

WARNS_AT = 0.75
TELLS_AT = 0.90
BAR_CELLS = 8
WIDE = 100
"""Columns of a terminal with room for a bar."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Tokens of the context in use, and how many there may be before something is left out."""

    used: int | None = 0
    """None where the next answer has to tell."""
    context: int = 0
    limit: int = 0

    @classmethod
    def of(cls, used: int | None, context: int, max_tokens: int) -> Fill:
        """`fit` keeps room for an answer; what is asked must fit into the rest."""
        room = min(max_tokens, max(1, context // ANSWER_ROOM_SHARE))
        return cls(used, context, max(context - room, 1))

    @property
    def share(self) -> float:
        """1 where the next question leaves out the oldest ones."""
        return self.used / self.limit if self.limit and self.used is not None else 0.0

    def words(self) -> str:
        """A sentence on how it stands, and on what comes."""
        if not self.context:
            return "No model is open, so nothing is known of its context."
        begin = f"{self.used} of {self.context} tokens of the context are in use."
        if self.used is None:
            begin = (
                f"The context holds {self.context} tokens; how many of them are in use, the next "
                "answer tells."
            )
        return (
            f"{begin} Beyond {self.limit}, so that there is room for an answer, the oldest "
            "questions and their answers, down to half of the context, are no longer sent to the "
            "model (they stay on the screen and are kept). /compact sums them up before that; "
            "Ctrl+N or /new begins a new conversation."
        )


class ContextMeter(SingleLayout, Widget):
    """At the end of the status line; changes its colour before the context is full."""

    fill: reactive[Fill] = reactive(Fill())

    def watch_fill(self, fill: Fill) -> None:
        """Warns; the screen is laid out anew only where there is another context."""
        if self.render().cell_length != self.size.width:
            self.refresh(layout=True)
        self.set_class(fill.share >= WARNS_AT, "-warning")
        self.set_class(fill.share >= TELLS_AT, "-full")

    def render(self) -> Content:
        """`ctx ███───── 812/4096`, the bar where there is room; as wide as it can become."""
        fill = self.fill
        if not fill.context:
            return Content("")
        bar = ""
        if self.app.size.width >= WIDE:
            done = min(round(BAR_CELLS * (fill.used or 0) / fill.context), BAR_CELLS)
            bar = "━" * done + "╌" * (BAR_CELLS - done) + " "
        used = "?" if fill.used is None else fill.used
        words = f"ctx {bar}{used}/{fill.context}"
        return Content(words.rjust(len(f"ctx {bar}{fill.context}/{fill.context}")))
