"""The widget of what a model thought before its answer."""

from __future__ import annotations

import re

from textual import events
from textual.content import Content
from textual.widgets import Static

from flashllm.ui.widgets.single_layout import SingleLayout

SHOWN_CHARACTERS = 320
"""Of what is being thought only the end is shown: a long text would be laid out with each word."""
_WORD = re.compile(r"\S+")
_HOW = "a click or /thoughts shows it"
_LABEL = "$text-muted"
_THOUGHT = "dim"


class Reasoning(SingleLayout, Static):
    """The end of it while the model thinks; then a line, which a click opens."""

    def __init__(self, text: str = "") -> None:
        super().__init__(markup=False, classes="reasoning")
        self._text = ""
        self._words = 0
        self._ends_in_word = False
        self._is_over = False
        self._came_to = ""
        self.is_open = False
        """Whether all of it is shown."""
        self.add(text)

    def add(self, text: str) -> None:
        """More of it, cut anywhere."""
        words = len(_WORD.findall(text))
        self._words += words - (self._ends_in_word and words > 0 and not text[:1].isspace())
        self._ends_in_word = bool(text) and not text[-1].isspace()
        self._text += text
        self._is_over = self._is_over and not self._came_to
        self._show()

    def end(self, *, answered: bool = True) -> None:
        """The answer begins, or ended before there was one: what was thought is folded."""
        came_to = "" if answered else ", and came to no answer"
        if (self._is_over, self._came_to) != (True, came_to):
            self._is_over, self._came_to = True, came_to
            self._show()

    def fold(self, is_open: bool) -> None:
        """Shows all of it, or a line that tells that it is there."""
        self.is_open = is_open
        self._show()

    def on_click(self, event: events.Click) -> None:
        """Opens or folds, unless the click was the end of marking text."""
        if not self.screen.get_selected_text():
            event.stop()
            self.fold(not self.is_open)

    def _show(self) -> None:
        plural = "word" if self._words == 1 else "words"
        size = f"{self._words:,} {plural}"
        text = self._text.strip()
        label = f"thought, {size}{self._came_to}" if self._is_over else f"thinking, {size}"
        if self.is_open:
            label, shown = f"▾ {label}", text
        elif self._is_over:
            label, shown = f"▸ {label}; {_HOW}", ""
        else:
            label, shown = f"▸ {label}", text[-SHOWN_CHARACTERS:]
            if len(text) > SHOWN_CHARACTERS:
                shown = f"… {shown.partition(' ')[2]}"
        lines = [(label, _LABEL), *([("\n" + shown, _THOUGHT)] if shown else [])]
        self.update(Content.assemble(*lines))
