"""Llama shapes: no biases at all, so that column 0 of the stream itself is a constant.

It is so large that it decides what the norms divide by; they scale it to 1 and the others to the
variance 1. No layer adds to it; the first attention's scores and the gates' rows are all that look
at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flashllm.spec import ModelSpec

from .neurons import Neurons
from .recency import Recency, head_signs
from .stream import FAST_DEVIATION, LAYERS_SHARE, LOGIT_DEVIATION, layer_gain
from .tensors import NUMPY_DTYPES, Maker, Rows, Tensor

Matrix = NDArray[np.float32]

EMBEDDING = "model.embed_tokens.weight"
CONSTANT = 2.0
"""Column 0, in units of the root of the width."""


def tensors(spec: ModelSpec, maker: Maker) -> Iterator[Tensor]:
    """All tensors, in the order of the file."""
    size = (spec.vocab_size, spec.d_model)
    yield maker.random(EMBEDDING, size, FAST_DEVIATION, column=_constant(spec))
    for layer in range(spec.n_layers):
        yield from _layer(spec, maker, layer)
    yield maker.given("model.norm.weight", _norm(spec, 1 + LAYERS_SHARE))
    if not spec.tied_head:
        yield Tensor("lm_head.weight", size, _head(spec, maker))


def _layer(spec: ModelSpec, maker: Maker, layer: int) -> Iterator[Tensor]:
    name, width = f"model.layers.{layer}", spec.d_model
    done = LAYERS_SHARE * layer / spec.n_layers
    before = FAST_DEVIATION**2 if layer == 0 else 1 + done
    for norm, variance in (("input_layernorm", before), ("post_attention_layernorm", 1 + done)):
        yield maker.given(f"{name}.{norm}.weight", _norm(spec, variance))
    yield from _attention(spec, maker, layer)
    neurons = Neurons(maker.seed, layer, spec.n_layers, width, spec.d_ffn, constant=True)
    yield Tensor(f"{name}.mlp.gate_proj.weight", (spec.d_ffn, width), neurons.deciding)
    up = (spec.d_ffn, width)
    yield maker.random(f"{name}.mlp.up_proj.weight", up, 1 / math.sqrt(width), blind=True)
    down = layer_gain(spec) / math.sqrt(neurons.mean_square)
    yield maker.random(f"{name}.mlp.down_proj.weight", (width, spec.d_ffn), down, still=True)


def _head(spec: ModelSpec, maker: Maker) -> Rows:
    """The embedding of tokens with signs, and blind to the constant."""
    size = (spec.vocab_size, spec.d_model)
    deviation = LOGIT_DEVIATION / math.sqrt(spec.d_model)
    plain = maker.random(EMBEDDING, size, deviation, blind=True)
    signs = head_signs(spec, maker.seed).astype(NUMPY_DTYPES[maker.dtype])
    return lambda first, count: plain.rows(first, count) * signs


def _constant(spec: ModelSpec) -> float:
    return CONSTANT * math.sqrt(spec.d_model)


def _norm(spec: ModelSpec, variance: float) -> Matrix:
    """Weight [d_model] that makes 1 of the constant and of the others' variance."""
    others = (spec.d_model - 1) / spec.d_model * variance
    weight = np.full(spec.d_model, math.sqrt((others + CONSTANT**2) / variance), np.float32)
    weight[0] *= math.sqrt(variance) / _constant(spec)
    return weight


def _attention(spec: ModelSpec, maker: Maker, layer: int) -> Iterator[Tensor]:
    name, width = f"model.layers.{layer}.self_attn", spec.d_model
    rows = spec.n_heads * spec.head_dim
    if layer:
        for part, heads in (("q", spec.n_heads), ("k", spec.n_kv_heads), ("v", spec.n_kv_heads)):
            yield maker.random(
                f"{name}.{part}_proj.weight",
                (heads * spec.head_dim, width),
                1 / math.sqrt(width),
                blind=True,
            )
        deviation = layer_gain(spec) / math.sqrt(rows)
        yield maker.random(f"{name}.o_proj.weight", (width, rows), deviation, still=True)
        return
    recency = Recency(spec, maker.seed)
    queries = [recency.query(head) for head in range(spec.n_heads)]
    keys = [recency.key()] * spec.n_kv_heads
    values = [recency.value(head) for head in range(spec.n_kv_heads)]
    for part, heads_rows in (("q", queries), ("k", keys), ("v", values)):
        yield maker.given(f"{name}.{part}_proj.weight", np.concatenate(heads_rows))
    yield Tensor(f"{name}.o_proj.weight", (width, rows), recency.output)
