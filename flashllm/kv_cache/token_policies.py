"""Policies: which tokens before it a token of an answer attends to, in each layer.

All but attention to everything are lossy. A layer's choice has as many tokens for each key head,
and the token itself is always seen. Prompts attend to everything.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.kv_cache.layout import SAMPLE_TOKENS, tokens_max
from flashllm.kv_cache.partial_index import PartialIndex
from flashllm.kv_cache.pool import LimitedPool
from flashllm.kv_cache.recall_control import RecallControl
from flashllm.kv_cache.speculative_fetch import (
    FLOOR_TOKENS,
    Positions,
    SpeculativeFetch,
    below_best,
    best_positions,
)
from flashllm.large_arrays import Floats

_BLOCK_TOKENS = 16
"""Tokens of a prompt whose attention is counted together."""
_UNIT = 1 << 32
"""Of attention's mass: a million tokens of a hundred heads stay below 2**60."""


class ScoredRows(Protocol):
    """What policies ask of the keys, wherever they lie."""

    def scores(self, layer: int, kv_head: int, queries: Floats, end: int) -> Floats:
        """Products [queries, end] of queries [queries, head_dim] with the first `end` keys."""


class TokenPolicy(Protocol):
    """Chooses for one context."""

    layers: tuple[int, ...]
    """Those in which it chooses; the others attend to everything."""
    speculates: bool
    """Whether it chooses a layer ahead, by a guess of the layer's queries."""
    late: int
    """Of the last choice, the tokens of each key head that were not known a layer ahead."""
    by_scores: bool
    """Whether it chooses by the true scores of all tokens: `best` is asked instead of `choose`."""

    def append(self, layer: int, position: int, queries: Floats, keys: Floats, /) -> None:
        """Tokens from `position` on: queries [tokens, heads, ..], keys [kv_heads, tokens, ..]."""

    def attended(self, layer: int, position: int, queries: Floats, scale: float, /) -> None:
        """Tokens of a prompt attended to everything."""

    def speculate(
        self, layer: int, queries: Floats, tokens: int, scale: float, /
    ) -> Positions | None:
        """What the next token will be given of the first `tokens`; None: everything."""

    def choose(self, layer: int, queries: Floats, tokens: int, scale: float, /) -> Positions | None:
        """What a token is given of the `tokens` before it, for its queries [heads, head_dim]."""

    def best(self, scores: Floats, /) -> NDArray[np.int32]:
        """What the heads of a group are given, by their scores [heads, tokens] with all tokens."""

    def index_bytes(self, tokens: int, /) -> int:
        """What choosing reads for a token in a layer, besides what it chooses."""

    def may_stay(self, shared: int, length: int, /) -> int:
        """How many of the first `shared` tokens may stay where a context of `length` is cut."""

    def truncate(self, length: int, /) -> None:
        """Forget all tokens but the first `length`, a result of `may_stay`."""

    def close(self) -> None:
        """Drop all memory."""


class _Policy:
    """What most policies do: nothing."""

    speculates = by_scores = False

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers, self.late = layers, 0

    def append(self, *_: Any, **__: Any) -> None:
        """Nothing is kept of it."""

    def attended(self, *_: Any, **__: Any) -> None:
        """Nothing is learnt of it."""

    def speculate(self, *_: Any, **__: Any) -> Positions | None:
        """Everything."""
        return None

    def best(self, _scores: Floats) -> NDArray[np.int32]:
        """Scores are no matter."""
        raise AssertionError

    def index_bytes(self, _tokens: int) -> int:
        """No index."""
        return 0

    def may_stay(self, shared: int, _length: int) -> int:
        """All of them."""
        return shared

    def truncate(self, _length: int) -> None:
        """Nothing is known of them."""

    def close(self) -> None:
        """No memory."""


class SlidingWindow(_Policy):
    """The last tokens, a share of all."""

    def __init__(self, layers: tuple[int, ...], kv_heads: int, share: float) -> None:
        super().__init__(layers)
        self._kv_heads, self._share = kv_heads, share

    def choose(self, _layer: int, _queries: Floats, tokens: int, _scale: float) -> Positions | None:
        """Where they are decides, and nothing else."""
        if tokens <= FLOOR_TOKENS:
            return None
        first = tokens - tokens_max(tokens, self._share)
        return np.tile(np.arange(first, tokens, dtype=np.int32), (self._kv_heads, 1))


class TopValues(_Policy):
    """All keys are read, and of the values only those of the best scores, a share of all.

    A softmax over the chosen tokens alone. Heads that share keys share a choice, as everywhere.
    Source: FlexGen (Sheng et al., arXiv 2303.06865), section 5, sparse attention.
    """

    by_scores = True

    def __init__(self, layers: tuple[int, ...], share: float) -> None:
        super().__init__(layers)
        self._share = share

    def choose(self, _layer: int, _queries: Floats, tokens: int, _scale: float) -> Positions | None:
        """Of few tokens everything; else `best` chooses."""
        assert tokens <= FLOOR_TOKENS
        return None

    def best(self, scores: Floats) -> NDArray[np.int32]:
        """Those that any head of the group wants most."""
        count = tokens_max(scores.shape[1], self._share)
        found: NDArray[np.int32] = best_positions(below_best(scores, 1), count)[0]
        return found


class HeavyHitters(_Policy):
    """H2O: half of a share the last tokens, half those with the most attention so far.

    What is not chosen is lost for good. Source: Zhang et al., NeurIPS 2023, arXiv 2306.14048.
    """

    def __init__(
        self,
        layers: tuple[int, ...],
        heads: tuple[int, int],
        context: int,
        share: float,
        rows: ScoredRows,
    ) -> None:
        """`heads` are those of queries and of keys."""
        super().__init__(layers)
        self._kv_heads, self._group = heads[1], heads[0] // heads[1]
        self._share, self._rows = share, rows
        shape = (self._kv_heads, context)
        self._mass = {layer: np.zeros(shape, np.int64) for layer in layers}
        """The attention that each token has had, of all heads that share its key, in whole units:
        their sum does not depend on how a prompt was cut."""
        self._is_there = {layer: np.ones(shape, np.bool_) for layer in layers}
        self._last: dict[int, tuple[int, NDArray[np.int64]]] = {}
        """Of each layer where the last tokens end, and their attention [kv_heads, end]. It counts
        once others follow: they may be given up half way."""

    def attended(self, layer: int, position: int, queries: Floats, scale: float) -> None:
        """Counts the attention of a prompt."""
        self._count_last(layer, position)
        found = np.zeros((self._kv_heads, position + len(queries)), np.int64)
        for first in range(0, len(queries), _BLOCK_TOKENS):
            block = queries[first : first + _BLOCK_TOKENS]
            for head, mass in enumerate(found):
                self._add_block(layer, head, position + first, block, scale, mass)
        self._last[layer] = found.shape[1], found

    def choose(self, layer: int, queries: Floats, tokens: int, scale: float) -> Positions | None:
        """Evicts what is beyond the share, and counts this token's attention to the rest."""
        self._count_last(layer, tokens)
        chosen = None if tokens <= FLOOR_TOKENS else self._evict(layer, tokens)
        found = np.zeros((self._kv_heads, tokens + 1), np.int64)
        for head, mass in enumerate(found):
            own = queries[head * self._group : (head + 1) * self._group]
            scores = scale * self._rows.scores(layer, head, own, tokens + 1)
            seen = np.arange(tokens) if chosen is None else chosen[head]
            places = np.append(seen, tokens)
            mass[places] = _mass(scores[:, places])
        self._last[layer] = tokens + 1, found
        return chosen

    def may_stay(self, shared: int, length: int) -> int:
        """All or none: what was lost is not there any more."""
        return shared if shared == length else 0

    def truncate(self, length: int) -> None:
        """Begins anew, if it does."""
        if length == 0:
            self._last.clear()
            for layer in self.layers:
                self._mass[layer].fill(0)

    def _count_last(self, layer: int, position: int) -> None:
        """Counts what came last, if tokens from `position` on follow it."""
        end, found = self._last.pop(layer, (-1, None))
        if found is not None and end == position:
            self._mass[layer][:, :end] += found
        self._mass[layer][:, position:], self._is_there[layer][:, position:] = 0, True

    def _evict(self, layer: int, tokens: int) -> Positions:
        is_there = self._is_there[layer][:, :tokens]
        count = min(tokens_max(tokens, self._share), int(is_there[0].sum()))
        worth = np.where(is_there, self._mass[layer][:, :tokens], -1)
        worth[:, tokens - count // 2 :] = np.iinfo(np.int64).max
        chosen = best_positions(worth, count)
        is_there.fill(False)
        np.put_along_axis(is_there, chosen.astype(np.intp), True, axis=1)
        return chosen

    def _add_block(
        self,
        layer: int,
        head: int,
        position: int,
        block: Floats,
        scale: float,
        mass: NDArray[np.int64],
    ) -> None:
        """Adds the attention of tokens from `position` on, each to all before it and itself."""
        end = position + len(block)
        own = block[:, head * self._group : (head + 1) * self._group]
        flat = np.ascontiguousarray(own).reshape(-1, own.shape[2])
        scores = (scale * self._rows.scores(layer, head, flat, end)).reshape(*own.shape[:2], end)
        for number, row in enumerate(scores):
            seen = position + number + 1
            mass[:seen] += _mass(row[:, :seen])


class QuantisedKeys(_Policy):
    """SpeCache: a copy of the keys in few bits scores all tokens; the best are fetched exactly.

    Source: Jie et al., arXiv 2503.16163, which scores for the next token; here a layer scores when
    its queries are known, so that the fetch is not hidden, and the choice is better.
    """

    def __init__(
        self, layers: tuple[int, ...], kv_heads: int, share: float, index: PartialIndex
    ) -> None:
        super().__init__(layers)
        self._kv_heads, self._share, self._index = kv_heads, share, index

    def append(self, layer: int, position: int, queries: Floats, keys: Floats) -> None:
        """Copies the keys."""
        self._index.append(layer, position, queries, keys)

    def choose(self, layer: int, queries: Floats, tokens: int, scale: float) -> Positions | None:
        """The best of a share, for the head of each group that wants them most."""
        if tokens <= FLOOR_TOKENS:
            return None
        scores = self._index.scores(layer, queries, tokens, scale)
        self.late = tokens_max(tokens, self._share)
        return best_positions(below_best(scores, self._kv_heads), self.late)

    def index_bytes(self, tokens: int) -> int:
        """The copy of the keys."""
        return self._index.scores_bytes(tokens) if tokens > FLOOR_TOKENS else 0

    def may_stay(self, shared: int, length: int) -> int:
        """All, unless the index's columns are to be chosen anew."""
        return _with_sample(shared, length)

    def close(self) -> None:
        """Drops the index."""
        self._index.close()


class InfiniGen(_Policy):
    """What a layer will need by a guess that is made a layer ahead, from few columns of the keys.

    With a `pool`, tokens that gave way in it are lost.
    """

    speculates = True

    def __init__(
        self, fetch: SpeculativeFetch, control: RecallControl, pool: LimitedPool | None = None
    ) -> None:
        super().__init__(fetch.layers)
        self._fetch, self.control, self._pool = fetch, control, pool

    def append(self, layer: int, position: int, queries: Floats, keys: Floats) -> None:
        """Writes the partial keys."""
        self._fetch.index.append(layer, position, queries, keys)
        if self._pool is not None:
            self._pool.append(layer, position, position + keys.shape[1])

    def speculate(self, layer: int, queries: Floats, tokens: int, scale: float) -> Positions | None:
        """Chooses by the guess."""
        held = self._held(layer, tokens)
        return self._use(layer, self._fetch.speculate(layer, queries, tokens, scale, held), tokens)

    def choose(self, layer: int, queries: Floats, tokens: int, scale: float) -> Positions | None:
        """What was chosen a layer ahead, and what these queries need besides."""
        held = self._held(layer, tokens)
        ahead, late = self._fetch.choose(layer, queries, tokens, scale, held)
        self._use(layer, late, tokens)
        self.late = 0 if late is None else late.shape[1]
        if ahead is None or late is None:
            return ahead
        return np.sort(np.hstack((ahead, late)), axis=1)

    def index_bytes(self, tokens: int) -> int:
        """The partial keys, for the guess and for the queries themselves."""
        if tokens <= FLOOR_TOKENS:
            return 0
        return self._fetch.index_reads * self._fetch.index.scores_bytes(tokens)

    def _held(self, layer: int, tokens: int) -> NDArray[np.bool_] | None:
        return None if self._pool is None else self._pool.held(layer, tokens)

    def _use(self, layer: int, positions: Positions | None, tokens: int) -> Positions | None:
        if self._pool is not None and positions is not None:
            self._pool.use(layer, positions, tokens)
        return positions

    def may_stay(self, shared: int, length: int) -> int:
        """All, unless columns are to be chosen anew, or some tokens are lost."""
        if self._pool is not None and shared != length:
            return 0
        return _with_sample(shared, length)

    def truncate(self, length: int) -> None:
        """Forgets what alpha has learnt of the others."""
        self.control.truncate(length)
        if self._pool is not None and length == 0:
            self._pool.clear()

    def close(self) -> None:
        """Drops the index."""
        self._fetch.index.close()


def _with_sample(shared: int, length: int) -> int:
    """Columns are chosen by the first tokens, of which either all stay or none."""
    return shared if shared == length or shared >= SAMPLE_TOKENS else 0


def _mass(scores: Floats) -> NDArray[np.int64]:
    """Softmax of each row [heads, tokens], summed over the heads, in whole units."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64)
    weights /= weights.sum(axis=1, keepdims=True)
    mass: NDArray[np.int64] = np.rint(weights * _UNIT).astype(np.int64).sum(axis=0)
    return mass
