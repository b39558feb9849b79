"""Messages that wait above the prompt, until the model is open or an answer is complete."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from flashllm.ui.prompt.draft import Draft
from flashllm.untrusted.terminal import sanitize_line

SHOWN_CHARACTERS = 400
"""Of a message; a line holds no more."""
SHOWN_MOST, SHOWN_MOST_SHORT = 3, 1
"""Messages that have a line each, the last ones; on a terminal of few lines."""
EDIT, REMOVE = " edit ", " remove "
BUTTONS_FROM = 60
"""Columns of a terminal that has room for them."""


class WaitingMessages(Widget):
    """What is to be sent, the next one first. It takes no room where nothing waits.

    The first ones may be held, for the user: after a stop, or where a model could not be opened.
    """

    DEFAULT_CSS = """
    WaitingMessages {
        height: auto;
        display: none;
        padding: 0 1;
        background: $boost;
        color: $text-muted;
    }
    WaitingMessages.-shown {
        display: block;
    }
    """
    drafts: reactive[tuple[Draft, ...]] = reactive((), layout=True)
    held: reactive[int] = reactive(0)
    """How many of the first ones are not sent by themselves."""
    hint: reactive[str] = reactive("", layout=True)
    """When they are sent, and what keys do."""

    class Changed(Message):
        """Other messages wait now, or they are held."""

    class TakeBackAsked(Message):
        """The message `index` is to go back into the prompt."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def add(self, draft: Draft) -> None:
        """One more waits, behind the others."""
        self.drafts = (*self.drafts, draft)

    def take(self, index: int) -> Draft | None:
        """One of them, which waits no more; None where there is no such."""
        if not -len(self.drafts) <= index < len(self.drafts):
            return None
        drafts = list(self.drafts)
        if index % len(drafts) < self.held:
            self.held -= 1
        draft = drafts.pop(index)
        self.drafts = tuple(drafts)
        return draft

    def hold(self) -> None:
        """Nothing is sent by itself any more, of those that wait now."""
        self.held = len(self.drafts)

    def watch_drafts(self, drafts: tuple[Draft, ...]) -> None:
        """Takes room where there is something to show."""
        self.set_class(bool(drafts), "-shown")
        self.post_message(self.Changed())

    def watch_held(self) -> None:
        """Another word is said of them."""
        self.post_message(self.Changed())

    def on_click(self, event: events.Click) -> None:
        """A line goes back into the prompt; its end removes it."""
        index = self._first + event.y
        if not self._first <= index < len(self.drafts):
            return
        event.stop()
        if self._has_buttons and event.x >= self.size.width - len(REMOVE):
            self.take(index)
        else:
            self.post_message(self.TakeBackAsked(index))

    @property
    def _first(self) -> int:
        most = SHOWN_MOST_SHORT if self.screen.has_class("-short") else SHOWN_MOST
        return max(len(self.drafts) - most, 0)

    @property
    def _has_buttons(self) -> bool:
        return self.size.width >= BUTTONS_FROM

    def render(self) -> Content:
        """One a line, and when they are sent."""
        width = max(self.size.width, 1)
        shown = enumerate(self.drafts[self._first :], self._first)
        lines = [self._line(draft, number < self.held, width) for number, draft in shown]
        if self.hint and not self.screen.has_class("-short"):
            before = f"{self._first} more before; " if self._first else ""
            lines.append(Content.styled(f"{before}{self.hint}", "dim").truncate(width))
        return Content("\n").join(lines)

    def _line(self, draft: Draft, is_held: bool, width: int) -> Content:
        label = "held     " if is_held else "waiting  "
        buttons = Content.assemble((EDIT, "reverse"), " ", (REMOVE, "reverse"))
        end = Content.assemble(" ", buttons) if self._has_buttons else Content("")
        text = sanitize_line(draft.shown[:SHOWN_CHARACTERS])
        line = Content.assemble((label, "bold"), text)
        line = line.truncate(max(width - end.cell_length, 1), ellipsis=True, pad=True)
        return Content.assemble(line, end)
