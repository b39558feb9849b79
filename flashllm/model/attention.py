"""Attention of one layer, over a preallocated cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashllm.flash import core
from flashllm.flash.plan import kv_bytes
from flashllm.model.rope import Rotation
from flashllm.model.weights import Linear, Norm
from flashllm.spec import ModelSpec


class KvCache:
    """Keys and values of one context, allocated once; `length` tokens are in it."""

    def __init__(self, spec: ModelSpec, context: int) -> None:
        # Anonymous memory: pages that a short conversation never reaches cost nothing.
        self._buffer = core.Buffer(kv_bytes(spec, context))
        values = torch.from_numpy(self._buffer.array()).view(torch.float32)
        # [layers, keys or values, kv_heads, context, head_dim]
        self._values = values.view(spec.n_layers, 2, spec.n_kv_heads, context, spec.head_dim)
        self.context = context
        self.length = 0

    def clear(self) -> None:
        """Start a new context."""
        self.length = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [kv_heads, tokens, head_dim] after `length`; all keys and values up to there."""
        end = self.length + keys.shape[1]
        assert end <= self.context
        self._values[layer, 0, :, self.length : end] = keys
        self._values[layer, 1, :, self.length : end] = values
        return self._values[layer, 0, :, :end], self._values[layer, 1, :, :end]


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections of one layer and the attention between them."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    head_dim: int
    window: int
    """Tokens that one token sees, itself included; 0 for all before it."""

    def __call__(self, x: Tensor, layer: int, cache: KvCache, rotation: Rotation | None) -> Tensor:
        """[tokens, d_model] to the same; appends to the cache but does not advance it."""
        tokens = x.shape[0]
        query, key = self._heads(self.query(x)), self._heads(self.key(x))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        keys, values = cache.append(layer, key, self._heads(self.value(x)))
        if self.window:
            # What no token of these sees need not be looked at.
            seen = min(keys.shape[1], tokens + self.window - 1)
            keys, values = keys[:, -seen:], values[:, -seen:]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query.mul(self.head_dim**-0.5)[None],
            keys[None],
            values[None],
            attn_mask=causal_mask(tokens, keys.shape[1], self.window),
            scale=1.0,
            enable_gqa=query.shape[0] != keys.shape[0],
        )
        return self.output(mixed[0].transpose(0, 1).reshape(tokens, -1))

    def _heads(self, x: Tensor) -> Tensor:
        # [tokens, heads * head_dim] to [heads, tokens, head_dim]
        return x.view(x.shape[0], -1, self.head_dim).transpose(0, 1)


def causal_mask(tokens: int, length: int, window: int = 0) -> Tensor | None:
    """What the last `tokens` of `length` positions may not see, as an additive mask."""
    if tokens == 1:
        return None
    offset = length - tokens
    # In place: of a long context, a third copy would be more than the plan has room for.
    hidden = torch.full((tokens, length), float("-inf")).triu_(offset + 1)
    if window:
        hidden += torch.full((tokens, length), float("-inf")).tril_(offset - window)
    return hidden
