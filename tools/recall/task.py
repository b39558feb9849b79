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
    ids, answers = make_texts(shape, 1, generator)
    return ids[0], answers[0]


def make_texts(
    shape: Shape, texts: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """So many texts at once, which takes less time than one by one; both [texts, tokens]."""
    rows = np.arange(texts)[:, None]
    keys = FIRST_KEY + _some(shape.keys, shape.pairs, texts, generator)
    values = FIRST_VALUE + generator.integers(0, VALUES, (texts, shape.pairs))
    ids = np.empty((texts, shape.tokens), np.int64)
    ids[:, 0] = BOS
    ids[:, 1 : shape.prompt] = FIRST_NOISE + generator.integers(
        0, NOISES, (texts, shape.prompt - 1)
    )
    # Noise goes between pairs, never into one: before which of them, or behind the last.
    places = generator.integers(0, shape.pairs + 1, (texts, shape.noise))
    counts = np.bincount(
        (places + rows * (shape.pairs + 1)).reshape(-1), minlength=texts * (shape.pairs + 1)
    )
    before = counts.reshape(texts, -1).cumsum(axis=1)[:, : shape.pairs]
    starts = 1 + 2 * np.arange(shape.pairs) + before
    ids[rows, starts], ids[rows, starts + 1] = keys, values
    some = max(1, round(shape.popular * shape.pairs)) if shape.popular else shape.pairs
    chosen = _some(shape.pairs, some, texts, generator)
    asked = chosen[rows, generator.integers(0, some, (texts, shape.asked))]
    ids[:, shape.prompt :: 2] = keys[rows, asked]
    ids[:, shape.prompt + 1 :: 2] = BLANK
    answers = np.full(ids.shape, -1, np.int64)
    answers[:, shape.prompt + 1 :: 2] = values[rows, asked]
    return ids, answers


def _some(among: int, count: int, texts: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """`count` different numbers below `among` for each text, in any order: [texts, count]."""
    return generator.random((texts, among), np.float32).argsort(axis=1)[:, :count]
