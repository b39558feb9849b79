"""The tokens of this run's answers, each with its numbers, as far as they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashllm.telemetry.token_record import EngineToken

TOKENS_KEPT = 4_000
"""Tokens whose numbers can be looked at; those of the oldest answers go first."""


class AnswerTokens:
    """Tokens by the turn of their answer; the answer that was written last comes last."""

    def __init__(self) -> None:
        self._by_turn: dict[int, list[EngineToken]] = {}

    @property
    def turns(self) -> list[int]:
        """The answers that have tokens here."""
        return list(self._by_turn)

    def of(self, turn_id: int) -> Sequence[EngineToken]:
        """The tokens of an answer; empty if none are kept."""
        return self._by_turn.get(turn_id, ())

    def add(self, turn_id: int, tokens: Sequence[EngineToken]) -> None:
        """Keeps more tokens of an answer, which is the last one now."""
        self._by_turn[turn_id] = kept = self._by_turn.pop(turn_id, [])
        kept.extend(tokens)
        while len(self._by_turn) > 1 and sum(map(len, self._by_turn.values())) > TOKENS_KEPT:
            del self._by_turn[next(iter(self._by_turn))]

    def clear(self) -> None:
        """Forgets all of them."""
        self._by_turn.clear()
