"""Falcon shapes: no biases but those of norms, one of which makes column 0 a constant.

Attention and feed-forward layer read the same stream, so that the first layer's neurons, alone, see
nothing that decays over tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flashllm.spec import ModelSpec

from .neurons import Neurons
from .recency import Recency, head_signs
from .stream import FAST_DEVIATION, head_scale, layer_gain
from .tensors import Maker, Tensor

Matrix = NDArray[np.float32]


def tensors(spec: ModelSpec, maker: Maker) -> Iterator[Tensor]:
    """All tensors, in the order of the file."""
    width = spec.d_model
    yield maker.random(
        "transformer.word_embeddings.weight", (spec.vocab_size, width), FAST_DEVIATION
    )
    for layer in range(spec.n_layers):
        yield from _layer(spec, maker, layer)
    scale = np.float32(head_scale(width))
    yield maker.given("transformer.ln_f.weight", scale * head_signs(spec, maker.seed))
    yield maker.constant("transformer.ln_f.bias", width, 0.0)


def _layer(spec: ModelSpec, maker: Maker, layer: int) -> Iterator[Tensor]:
    name, width = f"transformer.h.{layer}", spec.d_model
    for norm in ("input_layernorm",) if spec.shared_norm else ("ln_attn", "ln_mlp"):
        weight, bias = np.ones(width, np.float32), np.zeros(width, np.float32)
        weight[0], bias[0] = 0, 1
        yield maker.given(f"{name}.{norm}.weight", weight)
        yield maker.given(f"{name}.{norm}.bias", bias)
    yield from _attention(spec, maker, layer)
    neurons = Neurons(maker.seed, layer, spec.n_layers, width, spec.d_ffn, constant=True)
    yield Tensor(f"{name}.mlp.dense_h_to_4h.weight", (spec.d_ffn, width), neurons.deciding)
    yield Tensor(
        f"{name}.mlp.dense_4h_to_h.weight",
        (width, spec.d_ffn),
        lambda first, count: neurons.adding(first, count, layer_gain(spec)),
    )


def _attention(spec: ModelSpec, maker: Maker, layer: int) -> Iterator[Tensor]:
    """Group after group of heads: their queries, the key, the value that they share."""
    name, width = f"transformer.h.{layer}.self_attention", spec.d_model
    shared = spec.n_heads // spec.n_kv_heads
    fused = (spec.n_kv_heads * (shared + 2) * spec.head_dim, width)
    rows = spec.n_heads * spec.head_dim
    if layer:
        yield maker.random(
            f"{name}.query_key_value.weight", fused, 1 / math.sqrt(width), blind=True
        )
        deviation = layer_gain(spec) / math.sqrt(rows)
        yield maker.random(f"{name}.dense.weight", (width, rows), deviation)
        return
    recency = Recency(spec, maker.seed)
    yield maker.given(
        f"{name}.query_key_value.weight",
        np.concatenate([_group(recency, kv_head, shared) for kv_head in range(spec.n_kv_heads)]),
    )
    yield Tensor(f"{name}.dense.weight", (width, rows), recency.output)


def _group(recency: Recency, kv_head: int, shared: int) -> Matrix:
    heads = range(kv_head * shared, (kv_head + 1) * shared)
    queries = [recency.query(head) for head in heads]
    return np.concatenate([*queries, recency.key(), recency.value(kv_head)])
