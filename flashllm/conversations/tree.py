"""A conversation: a tree of turns, one path of which is shown."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from flashllm.tokenizer.chat_template import Message


BROKEN_OFF = "error"
"""How an answer ended that an error ended."""
UNFINISHED = ("cancelled", "length", BROKEN_OFF)
"""How an answer ended that can go on."""

Role = Literal["user", "assistant"]


@dataclass(slots=True)
class Turn:
    """What one of the two said, somewhere in the tree."""

    id: int
    parent: int | None
    role: Role
    text: str
    ids: tuple[int, ...] = ()
    """Those that an answer was generated with; none where they are not known."""
    finish_reason: str | None = None
    """The generation's; None while an answer is written, and for questions."""
    created: float = 0.0
    """Seconds since 1970."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The sums of an answer's report: prefill and decode."""


@dataclass(slots=True)
class Conversation:
    """Turns by id; ids grow, and the shown path ends at `leaf`."""

    system: str = ""
    turns: dict[int, Turn] = field(default_factory=dict)
    leaf: int | None = None
    _left_out: dict[int, int] = field(default_factory=dict, init=False, compare=False)
    """How many messages of its path stayed unsent from a question on, by the question's id."""
    _last_id: int = field(default=0, init=False, compare=False)
    """Of the newest turn there was: no id comes twice, also where turns were removed."""

    @property
    def dropped(self) -> int:
        """The first so many messages of the path no longer fit into the context and stay unsent.

        They do from the question on that was last when it was said; versions of an earlier one are
        sent what that one was sent.
        """
        known = (self._left_out.get(turn.id) for turn in reversed(self.path()))
        return next((count for count in known if count is not None), 0)

    @dropped.setter
    def dropped(self, messages: int) -> None:
        question = next(turn for turn in reversed(self.path()) if turn.role == "user")
        self._left_out[question.id] = messages

    def leave_nothing_out(self) -> None:
        """The next question is sent with all that was before it, as far as that fits then."""
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

    def begin_answer(self) -> Turn:
        """Adds an answer, still empty, to the question at the end of the path."""
        assert self.leaf is not None, "an answer to nothing"
        assert self.turns[self.leaf].role == "user", "an answer to an answer"
        return self._add(self.leaf, "assistant", "")

    def edit(self, id_: int, text: str) -> Turn:
        """A sibling of a turn with another text, with which the path now ends."""
        turn = self.turns[id_]
        return self._add(turn.parent, turn.role, text)

    def regenerate(self) -> Turn:
        """An empty sibling of the last answer, or a first answer where there is none yet."""
        assert self.leaf is not None, "nothing to answer"
        last = self.turns[self.leaf]
        if last.role == "user":
            return self.begin_answer()
        return self._add(last.parent, "assistant", "")

    def siblings(self, id_: int) -> list[int]:
        """The turn and all that stand in its place, the oldest first."""
        return self._children(self.turns[id_].parent)

    def choose(self, id_: int) -> None:
        """Shows the path through a turn, and on to the newest one below it."""
        while True:
            self.leaf = id_
            below = self._children(id_)
            if not below:
                return
            id_ = below[-1]

    def remove(self, id_: int) -> None:
        """Removes a turn with all below.

        Where that was shown, the nearest other version of it is now, the one before first; where
        there is none, the path ends above.
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
        """What is sent: the path, less its `dropped` first messages, and less what is empty."""
        return [{"role": turn.role, "content": turn.text} for turn in self._sent()]

    def known(self) -> dict[int, tuple[int, ...]]:
        """Ids of the answers among `messages()`, by their number there."""
        return {number: turn.ids for number, turn in enumerate(self._sent()) if turn.ids}

    def clear(self) -> None:
        """Forgets everything but the system prompt."""
        self.turns.clear()
        self._left_out.clear()
        self.leaf = None

    def _sent(self) -> list[Turn]:
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
    """Whether an answer ended before its time."""
    return turn.role == "assistant" and turn.finish_reason in UNFINISHED and bool(turn.text.strip())


def restored(system: str, turns: Iterable[Turn], leaf: int | None) -> Conversation:
    """A conversation from its turns, as they were stored."""
    return Conversation(system, {turn.id: turn for turn in turns}, leaf)
