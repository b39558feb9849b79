"""Packs conversations into rows of one length, drawn anew for every step from the seed alone.

Half of the words are drawn evenly, half by how badly their definition was last known, so that the
last few words cost no extra rounds over all the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .conversations import Material, draw
from .tokenizer import BOS, ConversationEncoder

EVEN_FRACTION = 0.5
LOSS_DECAY = 0.7
REREAD_FRACTION = 0.3
"""How often earlier answers of a conversation are read as from a saved one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of ids with what each position must predict; arrays are [rows, tokens]."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]  # -1 where nothing is learned: in questions
    owners: NDArray[np.int64]  # index of the word whose definition is predicted here, or -1


class Sampler:
    """Draws batches; `word_loss` is the running loss of each word's definition, in nats a token."""

    def __init__(self, material: Material, encoder: ConversationEncoder, seed: int) -> None:
        self.material = material
        self.encoder = encoder
        self.seed = seed
        self.index = {fact.word: i for i, fact in enumerate(material.facts)}
        self.word_loss = np.full(len(material.facts), 5.0)

    def batch(self, step: int, rows: int, tokens: int, positions_max: int) -> Batch:
        """A batch; half of its rows begin behind position 0, so that all positions are learned."""
        rng = random.Random(f"{self.seed}-{step}")
        weights = np.cumsum(self._weights())
        packed = [self._row(rng, tokens + 1, weights) for _ in range(rows)]
        ids, owners = (np.array(column, dtype=np.int64) for column in zip(*packed, strict=True))
        answers = owners[:, 1:] != NOT_LEARNED
        last_offset = positions_max - tokens
        offsets = [rng.choice((0, rng.randint(0, last_offset))) for _ in range(rows)]
        return Batch(
            ids=ids[:, :-1],
            positions=np.arange(tokens)[None] + np.array(offsets)[:, None],
            targets=np.where(answers, ids[:, 1:], -1),
            owners=np.maximum(owners[:, 1:], -1),
        )

    def learn_losses(self, owners: NDArray[np.int64], losses: NDArray[np.float32]) -> None:
        """Updates the running losses from those of single tokens; both arrays are [tokens]."""
        mine = owners >= 0
        count = np.bincount(owners[mine], minlength=len(self.word_loss))
        total = np.bincount(owners[mine], losses[mine], minlength=len(self.word_loss))
        seen = count > 0
        fresh = total[seen] / count[seen]
        self.word_loss[seen] = LOSS_DECAY * self.word_loss[seen] + (1 - LOSS_DECAY) * fresh

    def _weights(self) -> NDArray[np.float64]:
        hard = self.word_loss / self.word_loss.sum()
        weights: NDArray[np.float64] = EVEN_FRACTION / len(hard) + (1 - EVEN_FRACTION) * hard
        return weights

    def _row(
        self, rng: random.Random, tokens: int, weights: NDArray[np.float64]
    ) -> tuple[list[int], list[int]]:
        """Ids of whole conversations, cut at the end of the row, and each id's owner."""
        row: list[int] = []
        owners: list[int] = []
        while len(row) < tokens:
            word = int(np.searchsorted(weights, rng.random() * weights[-1]))
            conversation = draw(self.material, self.material.facts[word], rng)
            ids, spans = self.encoder.conversation(conversation, rng.random() < REREAD_FRACTION)
            row_owners = [NOT_LEARNED] * len(ids)
            for turn, (start, stop) in zip(conversation, spans, strict=True):
                owner = self.index[turn.word] if turn.intent == "definition" else NO_WORD
                row_owners[start:stop] = [owner] * (stop - start)
            assert ids[0] == BOS
            row += ids
            owners += row_owners
        return row[:tokens], owners[:tokens]


NO_WORD = -1  # an answer that is not a definition
NOT_LEARNED = -2  # a question
