"""Attention of one layer, over a cache of encoded keys and values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from flashllm import core
from flashllm.arrays import Ids
from flashllm.kv_cache.dram import KvCache, Placing
from flashllm.kv_cache.protocol import KeysValues
from flashllm.kv_cache.rows import in_order
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.model.linear import Linear, LinearGroup, Norm
from flashllm.model.rope import Rotation


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens that follow one another in one sequence."""

    cache: KeysValues
    tokens: int
    is_decoded: bool = False
    """Whether it is one token of an answer, which may see less than all before it."""

    @property
    def positions(self) -> range:
        """Where they are: behind what the cache holds."""
        return range(self.cache.length, self.cache.length + self.tokens)


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections of one layer and the attention between them."""

    query: Linear
    projections: LinearGroup
    """Of keys, values and queries."""
    output: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    norm_whole: bool
    """Whether these norms are over all heads of a token together."""
    head_dim: int
    scale: float
    """Factor of the scores."""
    window: int
    """Tokens that one token sees, itself included; 0 means all before it."""
    rotated: bool
    """Whether queries and keys know their positions, in a model with rotary ones."""
    kernels: core.Kernels
    sinks: Floats | None  # [heads]
    """Scores of no position, which take their share of the softmax. Source: Xiao et al., arXiv
    2309.17453, section 3.3."""

    def __call__(
        self,
        x: Floats,
        layer: int,
        spans: Sequence[Span],
        rotation: Rotation | None,
        next_window: int | None = None,
        rows: Ids | None = None,
    ) -> Floats:
        """[tokens, d_model] to [tokens, d_model]: the tokens of spans, one span after another.

        Appends to their caches but does not advance them. What a span needs is read ahead while the
        one before it is computed; `next_window` is the window of the next layer, None if this is
        the last one. With `rows` only the outputs of these tokens, by number, are computed.
        """
        keys, values, queries = projected = self.projections(x)
        if len(spans) == 1 and self._is_one_call(layer, spans[0]):
            mixed = self._attended_at_once(layer, spans[0].cache, projected, rotation)
            return self.output(mixed)
        key = self._placed(keys, self.key_norm, rotation)
        value = self._heads(values)
        query = self._placed(queries, self.query_norm, rotation)
        if len(spans) > 1:
            mixed = self._mixed(layer, spans, (key, value, query), next_window)
        else:
            if next_window is not None:
                spans[0].cache.expect(layer + 1, next_window)
            mixed = self._attended(layer, spans[0], key, value, query)
        return self.output(mixed if rows is None else mixed[rows])

    def _is_one_call(self, layer: int, span: Span) -> bool:
        """Whether the core does all between the projections of a span's token in one call."""
        cache = span.cache
        if not span.is_decoded or type(cache) is not KvCache or self.norm_whole:
            return False
        return cache.is_in_dram(layer)

    def _attended_at_once(
        self, layer: int, cache: KeysValues, projected: Sequence[Floats], rotation: Rotation | None
    ) -> Floats:
        """Of one token, [1, heads * head_dim], from its projections; appends to its cache."""
        assert isinstance(cache, KvCache)
        query_norm, key_norm = self.query_norm, self.key_norm
        turned = rotation if self.rotated else None
        placing = Placing(
            None if query_norm is None else query_norm.weight,
            None if key_norm is None else key_norm.weight,
            0.0 if query_norm is None else query_norm.eps,
            None if turned is None else turned.cos[0],
            None if turned is None else turned.sin[0],
        )
        return cache.attend_projected(
            layer, projected, placing, self.window, self.scale, self.sinks
        )

    def _attended(
        self, layer: int, span: Span, key: Floats, value: Floats, query: Floats
    ) -> Floats:
        """Of one span, [tokens, heads * head_dim]; `key` and others are [heads, tokens, head_dim].

        Appends to its cache.
        """
        cache = span.cache
        cache.append(layer, key, value)
        attend = cache.attend_decoded if span.is_decoded else cache.attend
        attended = attend(layer, query.swapaxes(0, 1), self.window, self.scale, self.sinks)
        return attended.reshape(span.tokens, -1)

    def _mixed(
        self, layer: int, spans: Sequence[Span], heads: Sequence[Floats], next_window: int | None
    ) -> Floats:
        """The same of several spans, whose tokens follow one another."""
        tokens = sum(span.tokens for span in spans)
        mixed = LARGE_ARRAYS.empty(tokens, heads[2].shape[0] * self.head_dim)
        firsts = [0, *itertools.accumulate(span.tokens for span in spans)]
        together = _together(spans, layer)
        if together:
            self._attend_each(
                spans[together.start : together.stop], layer, heads, firsts[together.start], mixed
            )
        others = [number for number in range(len(spans)) if number not in together]
        for number, later in itertools.zip_longest(others, others[1:]):
            span = spans[number]
            if later is not None:
                spans[later].cache.expect(layer, self.window)
            elif next_window is not None:
                spans[0].cache.expect(layer + 1, next_window)
            own = slice(firsts[number], firsts[number + 1])
            key, value, query = (of_all[:, own] for of_all in heads)
            mixed[own] = self._attended(layer, span, key, value, query)
        return mixed

    def _attend_each(
        self,
        spans: Sequence[Span],
        layer: int,
        heads: Sequence[Floats],
        first: int,
        mixed: Floats,
    ) -> None:
        """Attention of tokens from number `first` on, each of a context of its own, to `mixed`.

        `heads` are keys, values and queries [heads, tokens, head_dim] of all tokens.
        """
        own = slice(first, first + len(spans))
        key, value, query = (
            in_order(of_all[:, own].swapaxes(0, 1)).reshape(len(spans), -1) for of_all in heads
        )
        one, *others = (span.cache for span in spans if isinstance(span.cache, KvCache))
        rest = self.window, self.scale, self.sinks, mixed[own]
        one.attend_each(others, layer, (key, value, query), *rest)

    def queries(self, x: Floats, rotation: Rotation | None) -> Floats:
        """Queries [heads, tokens, head_dim] of tokens [tokens, d_model] at their positions."""
        return self._placed(self.query(x), self.query_norm, rotation)

    def _placed(self, projected: Floats, norm: Norm | None, rotation: Rotation | None) -> Floats:
        """Normed and rotated, in heads."""
        if norm is not None and self.norm_whole:
            projected, norm = norm(projected), None
        turned = rotation if self.rotated else None
        if norm is None and turned is None:
            return self._heads(projected)
        tokens = projected.shape[0]
        heads = LARGE_ARRAYS.empty(projected.shape[1] // self.head_dim, tokens, self.head_dim)
        self.kernels.place_heads(
            projected,
            self.head_dim,
            None if norm is None else norm.weight,
            0.0 if norm is None else norm.eps,
            None if turned is None else turned.cos,
            None if turned is None else turned.sin,
            heads.reshape(-1),
        )
        return heads

    def _heads(self, x: Floats) -> Floats:
        # [tokens, heads * head_dim] to [heads, tokens, head_dim]
        return x.reshape(x.shape[0], -1, self.head_dim).swapaxes(0, 1)


def _together(spans: Sequence[Span], layer: int) -> range:
    """Numbers of spans that follow one another and are computed in one call; none for one alone.

    They are tokens of answers whose keys and values lie in one piece of DRAM each. Caches of a step
    are of one kind, and these read nothing ahead.
    """
    numbers = [
        number
        for number, span in enumerate(spans)
        if span.is_decoded and type(span.cache) is KvCache and span.cache.is_in_dram(layer)
    ]
    if len(numbers) < 2 or numbers[-1] - numbers[0] + 1 != len(numbers):
        return range(0)
    return range(numbers[0], numbers[-1] + 1)
