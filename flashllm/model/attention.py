"""Attention of one layer, over a cache of encoded keys and values.

One token goes through our own kernel, which reads the encoded rows in place. A chunk of a prompt
goes through torch's attention, over decoded rows of a few heads at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashllm.kv_cache.dram import KvCache
from flashllm.model.linear import Linear, Norm
from flashllm.model.rope import Rotation


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
    """Tokens that one token sees, itself included; 0 means all before it."""

    def __call__(self, x: Tensor, layer: int, cache: KvCache, rotation: Rotation | None) -> Tensor:
        """[tokens, d_model] to [tokens, d_model]; appends to the cache but does not advance it."""
        tokens = x.shape[0]
        query, key = self._heads(self.query(x)), self._heads(self.key(x))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        end = cache.append(layer, key, self._heads(self.value(x)))
        # Positions that none of these tokens sees are skipped.
        first = max(end - tokens - self.window + 1, 0) if self.window else 0
        if tokens == 1:
            mixed = cache.attend(layer, query[:, 0], first, end, self.head_dim**-0.5)
            return self.output(mixed.view(1, -1))
        return self.output(self._mixed(query, layer, cache, first, end))

    def _mixed(self, query: Tensor, layer: int, cache: KvCache, first: int, end: int) -> Tensor:
        # [heads, tokens, head_dim] to [tokens, heads * head_dim]
        heads, tokens = query.shape[:2]
        query = query.mul(self.head_dim**-0.5)
        mask = causal_mask(tokens, end - first, self.window)
        mixed = torch.empty(tokens, heads, self.head_dim)
        for block in cache.blocks(layer, first, end):
            sharing = heads // cache.heads
            queries = slice(block.heads.start * sharing, block.heads.stop * sharing)
            found = torch.nn.functional.scaled_dot_product_attention(
                query[None, queries],
                block.keys[None],
                block.values[None],
                attn_mask=mask,
                scale=1.0,
                enable_gqa=sharing > 1,
            )
            mixed[:, queries] = found[0].transpose(0, 1)
        return mixed.view(tokens, -1)

    def _heads(self, x: Tensor) -> Tensor:
        # [tokens, heads * head_dim] to [heads, tokens, head_dim]
        return x.view(x.shape[0], -1, self.head_dim).transpose(0, 1)


def causal_mask(tokens: int, length: int, window: int = 0) -> Tensor:
    """The additive mask of what the last `tokens` of `length` positions may not see."""
    offset = length - tokens
    # In place: of a long context, a third copy would be more than the plan has room for.
    hidden = torch.full((tokens, length), float("-inf")).triu_(offset + 1)
    if window:
        hidden += torch.full((tokens, length), float("-inf")).tril_(offset - window)
    return hidden
