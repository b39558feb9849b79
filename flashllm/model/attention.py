"""Attention of one layer, over a cache of encoded keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashllm import core
from flashllm.kv_cache.protocol import KeysValues
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.model.linear import Linear, Norm
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
    key: Linear
    value: Linear
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
    ) -> Floats:
        """[tokens, d_model] to [tokens, d_model]: the tokens of spans, one span after another.

        Appends to their caches but does not advance them. What a span needs is read ahead while the
        one before it is computed; `next_window` is the window of the next layer, None if this is
        the last one.
        """
        query = self.queries(x, rotation)
        key = self._placed(self.key(x), self.key_norm, rotation)
        value, first = self._heads(self.value(x)), 0
        width = query.shape[0] * self.head_dim
        # One span's is the array that its cache gives.
        mixed: Floats | None = LARGE_ARRAYS.empty(len(x), width) if len(spans) > 1 else None
        for number, span in enumerate(spans):
            if number + 1 < len(spans):
                spans[number + 1].cache.expect(layer, self.window)
            elif next_window is not None:
                spans[0].cache.expect(layer + 1, next_window)
            own = slice(first, first + span.tokens)
            span.cache.append(layer, key[:, own], value[:, own])
            seen = query[:, own].swapaxes(0, 1)
            cache = span.cache
            attend = cache.attend_decoded if span.is_decoded else cache.attend
            attended = attend(layer, seen, self.window, self.scale, self.sinks)
            attended = attended.reshape(span.tokens, width)
            if mixed is None:
                mixed = attended
            else:
                mixed[own] = attended
            first += span.tokens
        assert mixed is not None, "there is a token"
        return self.output(mixed)

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
