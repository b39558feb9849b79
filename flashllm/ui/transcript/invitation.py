"""What an empty conversation shows: questions that can be asked by a key or a click."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from flashllm.ui.commands.bindings import INVITATION_BINDINGS
from flashllm.untrusted.terminal import sanitize


class SuggestedQuestion(Static, can_focus=True):
    """One of the questions; asked by a click, or by Enter while it has the focus."""

    def __init__(self, number: int, question: str) -> None:
        super().__init__(Content.assemble((f"{number}", "bold"), f"  {question}"), markup=False)
        self.question = question

    def on_click(self, event: events.Click) -> None:
        """Asks it."""
        event.stop()
        self.post_message(Invitation.Taken(self.question))


class Invitation(Vertical):
    """A sentence, questions, and how to get another model."""

    BINDINGS: ClassVar[list[BindingType]] = [*INVITATION_BINDINGS]
    DEFAULT_CSS = """
    Invitation {
        height: auto;
        padding: 0 1;
        color: $text-muted;
    }
    Invitation Static {
        height: auto;
    }
    Invitation SuggestedQuestion {
        color: $text;
        padding: 0 1;
    }
    Invitation SuggestedQuestion:hover {
        background: $boost;
    }
    Invitation SuggestedQuestion:focus {
        text-style: reverse;
    }
    """

    class Taken(Message):
        """A question is to be asked."""

        def __init__(self, question: str) -> None:
            super().__init__()
            self.question = question

    class Typed(Message):
        """A character that belongs into the prompt."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    def __init__(self, said: str, questions: Sequence[str], more: str) -> None:
        super().__init__()
        self._said, self._more = sanitize(said), sanitize(more)
        self._questions = [
            SuggestedQuestion(number, question) for number, question in enumerate(questions, 1)
        ]

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(self._said, classes="said", markup=False)
        yield from self._questions
        yield Static(self._more, classes="more", markup=False)

    def says_same(self, other: Invitation) -> bool:
        """Whether the other one differs in nothing."""
        return (self._said, self._more, [one.question for one in self._questions]) == (
            other._said, other._more, [one.question for one in other._questions]
        )  # fmt: skip

    def take_focus(self) -> None:
        """The first question gets the keys."""
        self._questions[0].focus()

    def action_go(self, by: int) -> None:
        """Another question gets the keys."""
        place = next((n for n, one in enumerate(self._questions) if one.has_focus), 0)
        self._questions[(place + by) % len(self._questions)].focus()

    def action_ask(self, number: int = 0) -> None:
        """Asks a question; 0: the one that has the focus."""
        chosen = [one for one in self._questions if one.has_focus]
        if number:
            chosen = self._questions[number - 1 : number]
        for one in chosen:
            self.post_message(self.Taken(one.question))

    def on_key(self, event: events.Key) -> None:
        """What is typed is a message of one's own."""
        is_typed = event.is_printable and event.character is not None
        if is_typed and event.key not in self.screen.active_bindings:
            event.stop()
            self.post_message(self.Typed(event.character or ""))
