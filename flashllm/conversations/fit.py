"""Which messages of a conversation fit into the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashllm.errors import PromptTooLong

if TYPE_CHECKING:
    from flashllm.tokenizer.chat_template import Message


ANSWER_ROOM_SHARE = 4
"""1 / 4 of the context is kept free for the answer."""
Known = Mapping[int, Sequence[int]]
"""Ids of earlier answers, by the number of their message."""
Encode = Callable[[Sequence["Message"], Known], list[int]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Token ids that fit, and the number of oldest messages that were left out."""

    ids: list[int]
    dropped: int


def fit(
    messages: Sequence[Message],
    system: str,
    encode: Encode,
    context_tokens: int,
    max_tokens: int,
    known: Known | None = None,
) -> Fitted:
    """Leaves out the oldest questions with their answers where an answer would not fit.

    The rest then takes half of the context at most, if possible, so that later turns begin with the
    same messages, which need not be read again. `encode` gets messages, the system prompt first,
    and known ids by message number. `PromptTooLong` if the last question alone is.
    """
    room = min(max_tokens, max(1, context_tokens // ANSWER_ROOM_SHARE))
    head: list[Message] = [{"role": "system", "content": system}] if system else []

    def without(pairs: int) -> list[int]:
        known_left = _after(2 * pairs, known or {}, len(head))
        return encode([*head, *messages[2 * pairs :]], known_left)

    ids, pairs = without(0), 0
    if len(ids) + room > context_tokens and len(messages) > 2:
        # Only a few of thousands of cuts are tried; the last question stays.
        some = range(1, (len(messages) - 1) // 2)
        pairs = 1 + bisect_left(some, True, key=lambda n: len(without(n)) <= context_tokens // 2)
        ids = without(pairs)
    if len(ids) + min(room, 1) <= context_tokens:
        return Fitted(ids, 2 * pairs)
    raise PromptTooLong(
        f"this message has {len(ids)} tokens, and the context holds {context_tokens}; shorten it"
    )


def _after(dropped: int, known: Known, head: int) -> dict[int, Sequence[int]]:
    """The known ids of the remaining messages, renumbered after `head` others."""
    return {number - dropped + head: ids for number, ids in known.items() if number >= dropped}
