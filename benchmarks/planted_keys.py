"""Keys and values that fill a context without a model: random, with outlier channels planted.

A few channels of each key head are as much larger than the others as `OUTLIER` says, another few in
each layer and head. So do the keys of large models (InfiniGen, arXiv 2406.19707, section 3). They
decide the scores of any query, so that a few tokens in a hundred have nearly all of attention.
These statistics are chosen, not found: what is measured with them is time and bytes.
"""

from __future__ import annotations

import numpy as np

from flashllm.kv_cache.context import Context
from flashllm.kv_cache.layout import SAMPLE_TOKENS
from flashllm.kv_cache.selected import SelectedCache
from flashllm.spec import ModelSpec

OUTLIERS, OUTLIER = 4, 20.0
"""How many channels, and their standard deviation; that of the others is 1."""
BLOCK_TOKENS = 512
TOKEN = 17
"""The id that all tokens of the context are said to have."""


def fill(context: Context, spec: ModelSpec, tokens: int, seed: int, stretch: int = 1) -> None:
    """Appends so many tokens to an empty context, in all layers, as a prompt would.

    `stretch` tokens in a row have the same outliers, so that they are chosen together; with 1 the
    choice is scattered, which costs most of pages. Policies are given the keys, and queries.
    """
    cache = context.keys_values
    generator = np.random.default_rng(seed)
    heads, width = spec.n_kv_heads, spec.head_dim
    sizes = np.ones((spec.n_layers, heads, 1, width), np.float32)
    for of_layer in sizes:
        for of_head in of_layer:
            of_head[0, generator.permutation(width)[:OUTLIERS]] = OUTLIER
    for first in range(0, tokens, BLOCK_TOKENS):
        count = min(BLOCK_TOKENS, tokens - first)
        for layer in range(spec.n_layers):
            rows = generator.standard_normal((2, heads, count, width), np.float32)
            values, plain = rows[1], rows[0]
            shared = plain[:, np.arange(count) // stretch]
            keys = np.where(sizes[layer] > 1, shared * sizes[layer], plain)
            cache.append(layer, keys, values)
            if isinstance(cache, SelectedCache) and layer in cache.policy.layers:
                # Only the first tokens' queries are looked at, which choose the index's columns.
                asked = count if first < SAMPLE_TOKENS else 0
                queries = generator.standard_normal((asked, spec.n_heads, width), np.float32)
                cache.policy.append(layer, context.length, queries, keys)
        context.append_prefilled([TOKEN] * count)
