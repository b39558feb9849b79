"""Which tokens' keys and values a layer will look at, found one layer ahead.

Source: InfiniGen (Lee et al., OSDI 2024, arXiv 2406.19707), section 4.3: a token whose score is
more than alpha below the best one has less than exp(-alpha) of its weight. Heads that share keys
share a choice: a token counts as what the head makes of it that wants it most.

The guess misses what the feed-forward layer between changes. So half of the budget is left for what
the layer's own queries find in the same index once they are known; only that is waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.kv_cache.layout import SAMPLE_TOKENS, tokens_max
from flashllm.kv_cache.partial_index import PartialIndex
from flashllm.kv_cache.recall_control import RecallControl
from flashllm.large_arrays import Floats

Positions = NDArray[np.int32]
"""Of a layer: [kv_heads, count], ascending. Each key head has as many."""

DEFAULT_ALPHA = 4.0
DEFAULT_SHARE_MAX = 0.2
FLOOR_TOKENS = SAMPLE_TOKENS
"""A context of no more tokens is attended to as a whole."""


def below_best(scores: Floats, kv_heads: int) -> Floats:
    """Scores [heads, tokens] as distances to the best of each head, 0 or less.

    Returns [kv_heads, tokens]: the largest of the heads that share a key head.
    """
    distances = scores - scores.max(axis=1, keepdims=True)
    shared: Floats = distances.reshape(kv_heads, -1, scores.shape[1]).max(axis=1)
    return shared


def fetch_count(distances: Floats, alpha: float, most: int) -> int:
    """How many tokens each key head fetches: the mean over heads of those within alpha, floored.

    At least 1, the best itself, and `most` at most.
    """
    within = np.count_nonzero((distances > -alpha) | (distances == 0), axis=1)
    return min(max(1, int(within.mean())), most)


def best_positions(distances: Floats | NDArray[np.int64], count: int) -> Positions:
    """The `count` tokens of each row that are nearest to the best; the first of equals."""
    tokens = distances.shape[1]
    assert 0 < count <= tokens
    found = np.empty((len(distances), count), np.int32)
    for row, own in zip(distances, found, strict=True):
        least = np.partition(row, tokens - count)[tokens - count]
        above = np.flatnonzero(row > least)
        equal = np.flatnonzero(row == least)[: count - len(above)]
        own[:] = np.sort(np.concatenate((above, equal)))
    return found


def late_count(distances: Floats, alpha: float, most: int) -> int:
    """How many more tokens each key head fetches, whose `distances` are -inf where it has them.

    The mean over heads of those within alpha, rounded up, so that no head's best is missed.
    """
    within = np.count_nonzero((distances > -alpha) | (distances == 0), axis=1)
    there = int(np.isfinite(distances).sum(axis=1).min())
    return min(math.ceil(float(within.mean())), most, there)


@dataclass(frozen=True, slots=True)
class _Speculation:
    tokens: int
    positions: Positions | None


class SpeculativeFetch:
    """InfiniGen's choice for one context: the index of its keys, and alpha of each layer."""

    def __init__(
        self,
        index: PartialIndex,
        layers: tuple[int, ...],
        kv_heads: int,
        control: RecallControl,
        share_max: float = DEFAULT_SHARE_MAX,
        *,
        corrects: bool = True,
    ) -> None:
        """`layers` choose; all others attend to everything.

        `corrects`: a layer adds what its own queries find. Without it the choice is the paper's.
        """
        self.index = index
        self.control = control
        self.share_max = share_max
        self.layers = layers
        self._kv_heads, self._corrects = kv_heads, corrects
        self._ahead: dict[int, _Speculation] = {}

    def speculate(
        self,
        layer: int,
        queries: Floats,
        tokens: int,
        scale: float,
        held: NDArray[np.bool_] | None = None,
    ) -> Positions | None:
        """What a layer will fetch of the first `tokens`, for a guess of its queries [heads, ..].

        None for everything. Tokens that are not `held` [kv_heads, tokens] cannot be fetched. The
        result is kept for `choose`.
        """
        positions = None
        if tokens > FLOOR_TOKENS:
            distances = self._distances(layer, queries, tokens, scale, held)
            share = self.share_max / 2 if self._corrects else self.share_max
            count = fetch_count(distances, self.control.alpha(layer), tokens_max(tokens, share))
            positions = best_positions(distances, count)
        self._ahead[layer] = _Speculation(tokens, positions)
        return positions

    def choose(
        self,
        layer: int,
        queries: Floats,
        tokens: int,
        scale: float,
        held: NDArray[np.bool_] | None = None,
    ) -> tuple[Positions | None, Positions | None]:
        """What was speculated for this layer and token, and what its own `queries` find besides.

        None for everything, and for nothing besides.
        """
        ahead = self._ahead.pop(layer, None)
        if ahead is None or ahead.tokens != tokens or ahead.positions is None:
            return None, None
        if not self._corrects:
            return ahead.positions, None
        distances = self._distances(layer, queries, tokens, scale, held)
        np.put_along_axis(distances, ahead.positions.astype(np.intp), -np.inf, axis=1)
        most = tokens_max(tokens, self.share_max) - ahead.positions.shape[1]
        count = late_count(distances, self.control.alpha(layer), most)
        return ahead.positions, best_positions(distances, count) if count > 0 else None

    @property
    def index_reads(self) -> int:
        """How often a token's choice reads the index."""
        return 2 if self._corrects else 1

    def _distances(
        self,
        layer: int,
        queries: Floats,
        tokens: int,
        scale: float,
        held: NDArray[np.bool_] | None,
    ) -> Floats:
        """[kv_heads, tokens]: how far below the best each token's estimated score is."""
        scores = self.index.scores(layer, queries, tokens, scale)
        if held is not None:
            group = len(scores) // self._kv_heads
            scores = np.where(held.repeat(group, axis=0), scores, np.float32(-np.inf))
        return below_best(scores, self._kv_heads)
