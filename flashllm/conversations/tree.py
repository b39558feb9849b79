"""A conversation: a tree of turns, one path of which is shown."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from flashllm.tokenizer.chat_template import Message


BROKEN_OFF = "error"
"""Finish reason of an answer that an error ended."""
UNFINISHED = ("cancelled", "length", BROKEN_OFF)
"""Finish reasons of answers that can be continued."""

Role = Literal["user", "assistant"]


@dataclass(slots=True)
class Turn:
    """A question or an answer, somewhere in the tree."""

    id: int
    parent: int | None
    role: Role
    text: str
    ids: tuple[int, ...] = ()
    """Ids that an answer was generated with; empty if unknown."""
    finish_reason: str | None = None
    """The generation's finish reason; None while an answer is written, and for questions."""
    created: float = 0.0
    """Seconds since 1970."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The sums of an answer's report: prefill and decode."""


@dataclass(slots=True)
class Conversation:
    """Turns by id; ids grow, and the shown path ends at `leaf`."""

    system: str = ""
    turns: dict[int, Turn] = field(default_factory=dict)
    leaf: int | None = None
    _left_out: dict[int, int] = field(default_factory=dict, init=False, compare=False)
    """From each question on, how many of the first messages are not sent, by the question's id."""
    _last_id: int = field(default=0, init=False, compare=False)
    """Id of the newest turn so far: ids are never reused, even if turns were removed."""

    @property
    def dropped(self) -> int:
        """How many of the path's first messages no longer fit into the context and are not sent.

        Setting it holds from the last question on; another version of an earlier question is sent
        with the same messages as that question was.
        """
        known = (self._left_out.get(turn.id) for turn in reversed(self.path()))
        return next((count for count in known if count is not None), 0)

    @dropped.setter
    def dropped(self, messages: int) -> None:
        question = next(turn for turn in reversed(self.path()) if turn.role == "user")
        self._left_out[question.id] = messages

    def leave_nothing_out(self) -> None:
        """From the next question on, all earlier messages are sent again, as far as they fit."""
        self._left_out.clear()

    def path(self) -> list[Turn]:
        """The shown turns, from the first to the leaf."""
        turns = []
        id_ = self.leaf
        while id_ is not None:
            turns.append(self.turns[id_])
            id_ = turns[-1].parent
        return turns[::-1]

    def ask(self, text: str) -> Turn:
        """Adds a question at the end of the path."""
        return self._add(self.leaf, "user", text)

    def begin_branch(self, text: str) -> Turn:
        """Adds a first question besides those that there are; the path now ends there."""
        return self._add(None, "user", text)

    def append_copy(self, turn: Turn) -> Turn:
        """Adds a copy of a turn at the end of the path.

        Its numbers say nothing of the context, which holds other messages before it here.
        """
        copy = self._add(self.leaf, turn.role, turn.text)
        copy.ids, copy.finish_reason = turn.ids, turn.finish_reason
        copy.numbers = {
            name: value for name, value in turn.numbers.items() if name != "prompt_tokens"
        }
        return copy

    def begin_answer(self) -> Turn:
        """Adds an answer, still empty, to the question at the end of the path."""
        assert self.leaf is not None, "an answer to nothing"
        assert self.turns[self.leaf].role == "user", "an answer to an answer"
        return self._add(self.leaf, "assistant", "")

    def edit(self, id_: int, text: str) -> Turn:
        """Adds a sibling of a turn with another text; the path now ends there."""
        turn = self.turns[id_]
        return self._add(turn.parent, turn.role, text)

    def regenerate(self) -> Turn:
        """Adds an empty sibling of the last answer, or a first answer if there is none yet."""
        assert self.leaf is not None, "nothing to answer"
        last = self.turns[self.leaf]
        if last.role == "user":
            return self.begin_answer()
        return self._add(last.parent, "assistant", "")

    def siblings(self, id_: int) -> list[int]:
        """The turn and its alternatives, the oldest first."""
        return self._children(self.turns[id_].parent)

    def choose(self, id_: int) -> None:
        """Shows the path through a turn, down to the newest one below it."""
        while True:
            self.leaf = id_
            below = self._children(id_)
            if not below:
                return
            id_ = below[-1]

    def remove(self, id_: int) -> None:
        """Removes a turn with all below.

        If it was shown, the nearest other version is shown instead, preferably the previous one;
        without another version the path ends above it.
        """
        parent, shown = self.turns[id_].parent, any(turn.id == id_ for turn in self.path())
        place = self.siblings(id_).index(id_)
        doomed = [id_]
        for turn in doomed:
            doomed += self._children(turn)
        for turn in doomed:
            del self.turns[turn]
            self._left_out.pop(turn, None)
        if shown:
            self.leaf = parent
            if others := self._children(parent):
                self.choose(others[max(place - 1, 0)])

    def messages(self) -> list[Message]:
        """The messages to send: the path without its `dropped` first ones and empty ones."""
        return [{"role": turn.role, "content": turn.text} for turn in self.sent()]

    def known(self) -> dict[int, tuple[int, ...]]:
        """Known ids of the answers in `messages()`, by their number there."""
        return {number: turn.ids for number, turn in enumerate(self.sent()) if turn.ids}

    def clear(self) -> None:
        """Forgets everything but the system prompt."""
        self.turns.clear()
        self._left_out.clear()
        self.leaf = None

    def sent(self) -> list[Turn]:
        """The turns of `messages()`."""
        sent: list[Turn] = []
        for turn in self.path():
            if turn.role == "user" and sent and sent[-1].role == "user":
                sent.pop()  # a question that got no answer, and was left behind
            if turn.role == "user" or turn.text.strip():
                sent.append(turn)
        return sent[self.dropped :]

    def _children(self, parent: int | None) -> list[int]:
        return sorted(turn.id for turn in self.turns.values() if turn.parent == parent)

    def _add(self, parent: int | None, role: Role, text: str) -> Turn:
        self._last_id = max((self._last_id, *self.turns)) + 1
        turn = Turn(self._last_id, parent, role, text, created=time.time())
        self.turns[turn.id] = turn
        self.leaf = turn.id
        return turn


def can_go_on(turn: Turn) -> bool:
    """Whether an answer was ended early, so that it can be continued."""
    return turn.role == "assistant" and turn.finish_reason in UNFINISHED and bool(turn.text.strip())


def restored(system: str, turns: Iterable[Turn], leaf: int | None) -> Conversation:
    """A conversation from its turns, as they were stored."""
    return Conversation(system, {turn.id: turn for turn in turns}, leaf)
