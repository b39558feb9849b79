"""The tokens of this run's answers, each with its numbers, as far as they are kept."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashllm.telemetry.token_record import EngineToken

TOKENS_KEPT = 4_000
"""Tokens whose numbers can be looked at; those of the oldest answers go first."""


class AnswerTokens:
    """Tokens by the turn of their answer; the answer that was written last comes last.

    Those of earlier answers are packed: a token with its numbers takes 2 KB, packed a tenth of it.
    """

    def __init__(self) -> None:
        self._packed: dict[int, tuple[int, bytes]] = {}
        """How many tokens, and these, of each answer but the last one."""
        self._turn: int | None = None
        """Of the answer that was written last."""
        self._tokens: list[EngineToken] = []
        """Of that answer."""

    @property
    def turns(self) -> list[int]:
        """The answers that have tokens here."""
        return [*self._packed, *([] if self._turn is None else [self._turn])]

    def of(self, turn_id: int) -> Sequence[EngineToken]:
        """The tokens of an answer; empty if none are kept."""
        if turn_id == self._turn:
            return self._tokens
        _, packed = self._packed.get(turn_id, (0, b""))
        return _unpacked(packed) if packed else ()

    def add(self, turn_id: int, tokens: Sequence[EngineToken]) -> None:
        """Keeps more tokens of an answer, which is the last one now."""
        if turn_id != self._turn:
            if self._turn is not None:
                self._packed[self._turn] = len(self._tokens), _packed(self._tokens)
            self._turn, self._tokens = turn_id, list(self.of(turn_id))
            self._packed.pop(turn_id, None)
        self._tokens.extend(tokens)
        kept = len(self._tokens) + sum(count for count, _ in self._packed.values())
        while self._packed and kept > TOKENS_KEPT:
            kept -= self._packed.pop(next(iter(self._packed)))[0]

    def clear(self) -> None:
        """Forgets all of them."""
        self._packed.clear()
        self._turn, self._tokens = None, []


def _packed(tokens: Sequence[EngineToken]) -> bytes:
    return zlib.compress(pickle.dumps(tokens, pickle.HIGHEST_PROTOCOL), 1)


def _unpacked(packed: bytes) -> list[EngineToken]:
    tokens: list[EngineToken] = pickle.loads(zlib.decompress(packed))  # noqa: S301  our own
    return tokens
