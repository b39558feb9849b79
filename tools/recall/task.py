"""The task: pairs of a key and a value, among noise; then keys again, whose values are to be said.

A key's value is another one in every text, so that it can only be looked up. It is not written
behind the question, where a blank stands: who forgets where it was told finds it nowhere else,
however often it was asked for. Keys are asked for from anywhere in the text. Source of the form:
Arora et al., Zoology, arXiv 2312.04927.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KEYS, VALUES, NOISES = 512, 64, 32
BOS = 0
FIRST_KEY = 1
FIRST_VALUE = FIRST_KEY + KEYS
FIRST_NOISE = FIRST_VALUE + VALUES
BLANK = FIRST_NOISE + NOISES
VOCAB = BLANK + 1


@dataclass(frozen=True, slots=True)
class Shape:
    """How long a text is, and of what."""

    pairs: int
    """Distinct keys that are given a value."""
    noise: int
    """Tokens between them."""
    asked: int
    """Keys that are asked for behind them, with repetitions."""
    keys: int = KEYS
    """Keys that there may be: few are learnt sooner."""
    popular: float = 0.0
    """The share of keys that all questions are about, from the whole text; 0 for all keys."""

    @property
    def prompt(self) -> int:
        """Tokens before the first question."""
        return 1 + 2 * self.pairs + self.noise

    @property
    def tokens(self) -> int:
        """Of a whole text."""
        return self.prompt + 2 * self.asked


def make_text(
    shape: Shape, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids of a text, and at each blank the value to be said there, else -1; both [tokens]."""
    keys = FIRST_KEY + generator.permutation(shape.keys)[: shape.pairs]
    values = FIRST_VALUE + generator.integers(0, VALUES, shape.pairs)
    pairs = np.stack((keys, values), axis=1)
    # Noise goes between pairs, never into one.
    places = np.sort(generator.integers(0, shape.pairs + 1, shape.noise))
    noise = FIRST_NOISE + generator.integers(0, NOISES, shape.noise)
    told = np.insert(pairs.reshape(-1), 2 * places, noise)
    some = max(1, round(shape.popular * shape.pairs)) if shape.popular else shape.pairs
    chosen = generator.permutation(shape.pairs)[:some]
    asked = pairs[generator.choice(chosen, shape.asked)]
    ids = np.concatenate(([BOS], told, asked.reshape(-1)))
    answers = np.full(len(ids), -1, np.int64)
    blanks = slice(shape.prompt + 1, None, 2)
    answers[blanks], ids[blanks] = ids[blanks], BLANK
    return ids, answers
