"""Packs conversations into rows of one length, drawn anew for every step from the seed alone.

Half of the words are drawn evenly, half by how badly what is said of them was last known, so that
the last few facts cost no extra rounds over all the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .conversations import Material, Turn, draw
from .tokenizer import BOS, ConversationEncoder

LEARNED_INTENTS = ("definition", "synonyms", "opposite", "kind", "example")
"""Intents whose answer is in the weights only, fact by fact."""
EVEN_FRACTION = 0.5
UNSEEN_LOSS = 5.0
LOSS_DECAY = 0.7
REREAD_FRACTION = 0.3
"""How often earlier answers of a conversation are read as from a saved one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of ids with what each position must predict; arrays are [rows, tokens]."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]  # -1 where nothing is learned: in questions
    owners: NDArray[np.int64]  # index of the fact that is predicted here (see Sampler), or -1


class Sampler:
    """Draws batches; `losses` are running, in nats a token, [words, LEARNED_INTENTS].

    The index of a fact is that of its word times the count of intents, plus that of the intent.
    """

    def __init__(self, material: Material, encoder: ConversationEncoder, seed: int) -> None:
        self.material = material
        self.encoder = encoder
        self.seed = seed
        self.index = {fact.word: i for i, fact in enumerate(material.facts)}
        known = [[fact.is_known(intent) for intent in LEARNED_INTENTS] for fact in material.facts]
        self.known = np.array(known, dtype=bool).reshape(-1, len(LEARNED_INTENTS))
        self.losses = np.full(self.known.shape, UNSEEN_LOSS)
        self._show_hardness(np.arange(self.losses.size))

    def state(self) -> dict[str, Any]:
        """The running losses, by word."""
        return {"words": list(self.index), "losses": torch.from_numpy(self.losses)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes the losses of an earlier run, whose words may have been others."""
        rows = zip(state["words"], state["losses"].numpy(), strict=True)
        for word, row in rows:
            if word in self.index:
                self.losses[self.index[word]] = row
        self._show_hardness(np.arange(self.losses.size))

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
        flat = self.losses.reshape(-1)
        mine = owners >= 0
        count = np.bincount(owners[mine], minlength=flat.size)
        total = np.bincount(owners[mine], losses[mine], minlength=flat.size)
        seen = np.flatnonzero(count)
        flat[seen] = LOSS_DECAY * flat[seen] + (1 - LOSS_DECAY) * total[seen] / count[seen]
        self._show_hardness(seen)

    def _show_hardness(self, facts: NDArray[np.int64]) -> None:
        """Tells the drawing of conversations how hard some facts are, given by their index."""
        words = self.material.facts
        for fact in facts.tolist():
            word, intent = divmod(fact, len(LEARNED_INTENTS))
            loss = float(self.losses[word, intent])
            self.material.hardness[words[word].word, LEARNED_INTENTS[intent]] = loss

    def _weights(self) -> NDArray[np.float64]:
        hard = (self.losses * self.known).sum(1)
        even = EVEN_FRACTION / len(hard)
        weights: NDArray[np.float64] = even + (1 - EVEN_FRACTION) * hard / hard.sum()
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
                row_owners[start:stop] = [self._owner(turn)] * (stop - start)
            assert ids[0] == BOS
            row += ids
            owners += row_owners
        return row[:tokens], owners[:tokens]

    def _owner(self, turn: Turn) -> int:
        if turn.intent not in LEARNED_INTENTS:
            return NO_FACT
        word = self.index[turn.word]
        return word * len(LEARNED_INTENTS) + LEARNED_INTENTS.index(turn.intent)


NO_FACT = -1  # an answer that is none of LEARNED_INTENTS
NOT_LEARNED = -2  # a question
