"""What the transcript is made of: a widget for each question, answer and remark."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from flashllm.untrusted.terminal import sanitize

SHOWN_CHARACTERS = 4000
"""Of a longer question only the beginning is shown; all of it is sent, kept and copied."""


class TurnView(Widget):
    """One turn of the conversation; a click selects it."""

    turn_id: int

    class Chosen(Message):
        """The reader clicked on this turn."""

        def __init__(self, turn_id: int) -> None:
            super().__init__()
            self.turn_id = turn_id

    def on_click(self, event: events.Click) -> None:
        """Selects, unless the click was the end of marking text."""
        if not self.screen.get_selected_text():
            event.stop()
            self.post_message(self.Chosen(self.turn_id))

    def lay_out(self, near: range, far: range) -> None:
        """What has lines in `near` takes part in the layout, what is outside of `far` need not.

        Lines are counted from the first of the turn.
        """

    def show_reasoning(self, is_open: bool) -> None:
        """Shows what was thought before an answer, or a line that tells of it."""

    def show_note(self, note: str) -> None:
        """A short remark below the turn: which branch it is, and how it ended."""


class Question(Static, TurnView):
    """What the user sent, as it was typed."""

    def __init__(self, text: str, turn_id: int = 0, note: str = "") -> None:
        super().__init__(markup=False)
        self.turn_id = turn_id
        self._text = sanitize(text[: 2 * SHOWN_CHARACTERS])
        if len(text) > SHOWN_CHARACTERS:
            left_out = len(text) - SHOWN_CHARACTERS
            self._text = f"{self._text[:SHOWN_CHARACTERS]}\n... {left_out:,} characters more"
        self.show_note(note)

    def show_note(self, note: str) -> None:
        """On a line of its own."""
        if note:
            self.update(Content.assemble(self._text, ("\n" + note, "dim")))
        else:
            self.update(Content(self._text))


class Notice(Static):
    """A remark of the application; `kind` is info or error."""

    def __init__(self, text: str, kind: str = "info") -> None:
        super().__init__(sanitize(text), markup=False, classes=kind)
