"""What decays over tokens where positions are rotary: an attention that looks at the last tokens.

In the first layer all queries and keys are constants, so that the score of a key depends only on
how many tokens ago it was. Amplitudes over the rotary frequencies are those of a Lorentzian, whose
transform decays; the weights of the last tokens then fall off by about `DECAY` a token.

Heads come in pairs with the same values: the first of a pair attends so, the query of the second is
zero, so that it takes the mean of all tokens, and the output subtracts it. At the first token both
are the same: without that, the first tokens of a text would be as loud as their number is small.

The output of some is the transpose of the values, with the signs of the head: a token seen lately
is then less likely, while to the embedding itself what decays is a stranger. Without positions in
the stream, greedy decoding would else soon run in a circle.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.spec import ModelSpec

from .activity import SLOW_SHARE
from .normals import generator, normals

CONTRAST = 12.0
"""Score of the token itself over that of one far away: all those together weigh 1 %."""
DECAY = 0.845
"""Of the weights, near the token; what comes of random values then decays as `SLOW_DECAY`."""
TYPICAL_TOKENS = 192
"""The mean of so many is subtracted where the share of what decays is exact."""
LAST_PENALTY = 4.0
"""Deviations of the logits by which the last token is less likely; more makes those likely that
only the mean of all tokens, which is subtracted, still holds."""
LAST_WEIGHT = 0.59
"""Of the token itself, in units of the root of the sum of the squares of all weights."""
POSITIONS = 4096

Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recency:
    """Projections of the first layer's attention; the normed input has a constant 1 in column 0."""

    spec: ModelSpec
    seed: int

    @property
    def constant(self) -> Matrix:
        """Query and key of every head, [head_dim]."""
        amplitudes, _ = _kernel(self.spec.head_dim, _theta(self.spec))
        return amplitudes

    def query(self, head: int) -> Matrix:
        """[head_dim, d_model] of a head: zeros but for the constant."""
        return self._column(self.constant if head % 2 == 0 else np.zeros_like(self.constant))

    def key(self) -> Matrix:
        """[head_dim, d_model], the same for all heads."""
        return self._column(self.constant)

    def value(self, kv_head: int) -> Matrix:
        """[head_dim, d_model]; where each head has values of its own, both of a pair the same."""
        return _value(self.spec, self.seed, kv_head // 2 if self._paired else kv_head)

    def output(self, first: int, count: int) -> Matrix:
        """Rows [count, heads * head_dim] that bring the stream to its share of what decays."""
        spec, pairs = self.spec, self.spec.n_heads // 2
        distinct = pairs if self._paired else spec.n_kv_heads
        scale = self._scale(distinct) * distinct / pairs
        rows = np.zeros((count, spec.n_heads, spec.head_dim), np.float32)
        for pair in range(pairs):
            kv_head = 2 * pair * spec.n_kv_heads // spec.n_heads
            number = pair if self._paired else kv_head
            rows[:, 2 * pair] = scale * self._back(first, count, kv_head, number, distinct)
            rows[:, 2 * pair + 1] = -rows[:, 2 * pair]
        return rows.reshape(count, -1)

    def _back(self, first: int, count: int, kv_head: int, number: int, distinct: int) -> Matrix:
        """Rows [count, head_dim] of one pair: its values' transpose, or random ones like it."""
        spec = self.spec
        if number < self._turned_back(distinct):
            signs = head_signs(spec, self.seed)[first : first + count, None]
            return np.asarray(-signs * self.value(kv_head)[:, first : first + count].T)
        random = generator(self.seed, *b"output", number, first)
        rows = normals(random, (count, spec.head_dim), 1 / math.sqrt(spec.d_model))
        if first == 0:
            rows[0] = 0  # the constant stays as it is
        return rows

    def _scale(self, distinct: int) -> float:
        spec = self.spec
        _, power = _kernel(spec.head_dim, _theta(spec))
        back = self._turned_back(distinct)
        # A matrix times its transpose has eigenvalues of the variance dims / d_model.
        dims = distinct + back * back * spec.head_dim / spec.d_model
        power = (power - 1 / TYPICAL_TOKENS) * dims * spec.head_dim
        return math.sqrt(SLOW_SHARE * spec.d_model / power)

    def _turned_back(self, distinct: int) -> int:
        """How many of the distinct values: as many as make the last token so much less likely."""
        each = LAST_WEIGHT * math.sqrt(SLOW_SHARE * self.spec.head_dim / distinct)
        return min(distinct, math.ceil(LAST_PENALTY / each))

    @property
    def _paired(self) -> bool:
        return self.spec.n_kv_heads == self.spec.n_heads

    def _column(self, values: Matrix) -> Matrix:
        rows = np.zeros((self.spec.head_dim, self.spec.d_model), np.float32)
        rows[:, 0] = values
        return rows


def head_signs(spec: ModelSpec, seed: int) -> Matrix:
    """Signs [d_model] of the stream where it comes to a head that is the embedding of tokens."""
    signs = generator(seed, spec.n_layers).integers(0, 2, spec.d_model) * 2 - 1
    return signs.astype(np.float32)


@functools.lru_cache(maxsize=64)
def _value(spec: ModelSpec, seed: int, number: int) -> Matrix:
    random, width = generator(seed, *b"value", number), spec.d_model
    values = normals(random, (spec.head_dim, width), 1 / math.sqrt(width))
    values[:, 0] = 0
    return values


def _theta(spec: ModelSpec) -> float:
    assert spec.rope is not None, "only made for rotary positions"
    return spec.rope.theta


@functools.lru_cache(maxsize=8)
def _kernel(head_dim: int, theta: float) -> tuple[Matrix, float]:
    """The constant [head_dim], and the sum of the squares of the weights that it leads to."""
    half = head_dim // 2
    frequencies = theta ** (-np.arange(half) / half)
    rate = -math.log(DECAY) / CONTRAST
    shares = frequencies * rate / (rate**2 + frequencies**2)
    shares /= shares.sum()
    amplitudes = np.zeros(head_dim, np.float32)
    amplitudes[:half] = np.sqrt(CONTRAST * math.sqrt(head_dim) * shares)
    scores = CONTRAST * np.cos(np.outer(np.arange(POSITIONS), frequencies)) @ shares
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    return amplitudes, float(weights @ weights)
