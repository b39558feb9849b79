"""One token of an answer in each of several contexts at once: each read of a layer serves them all.

A step of FlexGen's block (arXiv 2303.06865, section 4.1): a layer's weights are read once for all
of its contexts, whose keys and values may be on flash. Every token has the bits that it has alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from flashllm.arrays import unwarned
from flashllm.kv_cache.context import Context
from flashllm.large_arrays import Floats
from flashllm.model.attention import Span
from flashllm.model.ffn_prefill import FeedForwardPrefill
from flashllm.model.layer_inputs import LayerInputs
from flashllm.model.transformer import Transformer
from flashllm.weight_cache.pool import BundlePool


class BlockSchedule:
    """Computes a token in each of several contexts, layer by layer for all of them."""

    def __init__(
        self,
        transformer: Transformer,
        feed_forward: FeedForwardPrefill,
        pool: BundlePool,
        seed_tokens: int,
        union_tokens: int,
        before_layer: Callable[[], None],
    ) -> None:
        """At most `union_tokens` tokens read what any of them needs, more read layers in order.

        What the last `seed_tokens` of those used stays in the pool. `before_layer` may stop it.
        """
        self._transformer = transformer
        self._feed_forward = feed_forward
        self._pool = pool
        self._seed_tokens = seed_tokens
        self._union_tokens = union_tokens
        self._before_layer = before_layer

    @unwarned
    def run(self, contexts: Sequence[Context], tokens: Sequence[int]) -> Floats:
        """Append a token to each context; hidden states [contexts, d_model] behind the layers."""
        transformer = self._transformer
        layers, dense = transformer.spec.n_layers, transformer.spec.dense_layers
        is_few = len(tokens) <= self._union_tokens
        self._pool.end_expecting()
        if not is_few:
            self._pool.expect(range(layers - dense))
        spans = [Span(context.keys_values, 1, is_decoded=True) for context in contexts]
        x = transformer.embed(tokens, spans)
        rotations = transformer.rotations(spans)
        for index in range(layers):
            self._before_layer()
            feed_forward = functools.partial(self._compute, index - dense, is_few)
            x = transformer.block(index, x, rotations, spans, feed_forward)
        for context, token in zip(contexts, tokens, strict=True):
            context.append_decoded(token)
        self._pool.advance(len(tokens))
        return x

    def _compute(self, layer: int, is_few: bool, inputs: LayerInputs) -> Floats:
        if is_few:
            return self._feed_forward.needed(layer, inputs)
        keep_tokens = min(self._seed_tokens, len(inputs.ffn))
        return self._feed_forward.dense(layer, inputs, keep_tokens, selected_from=0)
