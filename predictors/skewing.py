"""Matrices that turn queries and keys so that few of their columns say most of their products.

Source: InfiniGen (Lee et al., OSDI 2024, arXiv 2406.19707), section 4.2. A product of a query and a
key is the same after an orthogonal matrix was applied to both. The singular vectors of queries of a
text gather their energy in few columns. The matrices apply to what attention multiplies: with
biases, and after rotation. Heads that share keys share a matrix, that of all of their queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.engine.loading import open_decoder
from flashllm.flash.skewing_file import write_skewing
from flashllm.kv_cache.dram import KvCache
from flashllm.large_arrays import Floats
from flashllm.options import KvDType
from flashllm.spec import ModelSpec

TOKENS = 2048
"""As many as the paper takes; few suffice, since what gathers is the same in any text."""
Gram = NDArray[np.float64]
"""Sums of products of columns, [kv_heads, head_dim, head_dim]."""


class RecordingCache(KvCache):
    """A cache that counts the products of columns of all queries and keys that it is given."""

    def __init__(
        self, spec: ModelSpec, context: int, dtype: KvDType, kernels: core.Kernels
    ) -> None:
        super().__init__(spec, context, dtype, kernels)
        shape = spec.n_layers, spec.n_kv_heads, spec.head_dim, spec.head_dim
        self.queries, self.keys = np.zeros(shape), np.zeros(shape)
        self.tokens = 0

    def append(self, layer: int, keys: Floats, values: Floats) -> int:
        """Stores them, and counts the keys."""
        own = keys.astype(np.float64)
        self.keys[layer] += own.transpose(0, 2, 1) @ own
        return super().append(layer, keys, values)

    def attend(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """Attends, and counts the queries [tokens, heads, head_dim]."""
        kv_heads, width = self.queries.shape[1:3]
        shared = query.astype(np.float64).reshape(len(query), kv_heads, -1, width)
        own = shared.transpose(1, 0, 2, 3).reshape(kv_heads, -1, width)
        self.queries[layer] += own.transpose(0, 2, 1) @ own
        self.tokens += len(query) if layer == 0 else 0
        return super().attend(layer, query, window, scale, sinks)


def skewing_matrices(queries: Gram, keys: Gram) -> NDArray[np.float32]:
    """The matrix of each key head, [kv_heads, head_dim, head_dim], whose columns are orthonormal.

    They are the right singular vectors of the queries, by the product of what queries and keys have
    in them, the largest first.
    """
    found = np.empty(queries.shape, np.float32)
    for head, (query_gram, key_gram) in enumerate(zip(queries, keys, strict=True)):
        squares, vectors = np.linalg.eigh(query_gram)
        in_keys = ((key_gram @ vectors) * vectors).sum(axis=0)
        energy = np.maximum(squares, 0) * np.maximum(in_keys, 0)
        found[head] = vectors[:, np.argsort(-energy, kind="stable")]
    return found


def skew_model(
    directory: Path, passages: Sequence[Sequence[int]], on_tokens: Callable[[int], None]
) -> tuple[Path, int]:
    """Writes the skewing file of a converted model; the file, and of how many tokens it is.

    `on_tokens` gets how many tokens of a passage were computed. Errors: those of opening a model,
    and `CannotCreate`.
    """
    with open_decoder(directory, kv_dtype="f32", contexts=2) as decoder:
        spec = decoder.spec
        cache = RecordingCache(spec, decoder.context_tokens, "f32", decoder.kernels)
        context = decoder.new_context(cache)
        for ids in passages:
            decoder.prefill(ids[: decoder.context_tokens], context=context)
            on_tokens(len(ids))
        layers = [
            skewing_matrices(queries, keys)
            for queries, keys in zip(cache.queries, cache.keys, strict=True)
        ]
    return write_skewing(directory, layers), cache.tokens
