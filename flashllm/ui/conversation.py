"""A conversation as the model sees it, and how much of it fits into the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.template import Message

ANSWER_ROOM_SHARE = 4
"""One part in so many of the context is kept free for the answer."""


@dataclass(slots=True)
class Conversation:
    """Messages in order, as written; the first `dropped` of them no longer fit and stay unsent."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    dropped: int = 0

    def ask(self, text: str) -> list[Message]:
        """Adds a question; returns what is to be sent."""
        self.messages.append({"role": "user", "content": text})
        return self.messages[self.dropped :]

    def answer(self, text: str) -> None:
        """Adds the answer to the last question."""
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> str:
        """Removes the last question, to which there is no answer, and returns it."""
        return self.messages.pop()["content"]

    def clear(self) -> None:
        """Forgets everything but the system prompt."""
        self.messages.clear()
        self.dropped = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """Token ids that fit, and how many of the oldest messages were left out for that."""

    ids: list[int]
    dropped: int


def fit(
    messages: Sequence[Message],
    system: str,
    encode: Callable[[Sequence[Message]], list[int]],
    context_tokens: int,
    max_tokens: int,
) -> Fitted:
    """Leaves out the oldest questions with their answers until there is room for an answer.

    `UsageError` if the last question alone is too long.
    """
    room = min(max_tokens, max(1, context_tokens // ANSWER_ROOM_SHARE))
    head: list[Message] = [{"role": "system", "content": system}] if system else []
    dropped = 0
    while True:
        ids = encode([*head, *messages[dropped:]])
        if len(ids) + room <= context_tokens:
            return Fitted(ids, dropped)
        if len(messages) - dropped < 3:
            break
        dropped += 2
    if len(ids) < context_tokens:
        return Fitted(ids, dropped)
    raise UsageError(
        f"this message has {len(ids)} tokens, and the context holds {context_tokens}; shorten it"
    )
