"""OPT shapes: what decays over tokens is the learned embedding of positions.

Each of its dimensions is the same random process over positions, so that whatever direction a
neuron looks into, its pre-activation persists alike. The layers themselves add little, so that
this holds in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flashllm.spec import ModelSpec

from .activity import SLOW_DECAY, SLOW_SHARE
from .neurons import Neurons
from .normals import generator, normals
from .recency import head_signs
from .stream import FAST_DEVIATION, head_scale, layer_gain
from .tensors import Maker, Rows, Tensor

BIAS_DEVIATION = 0.01


def tensors(spec: ModelSpec, maker: Maker) -> Iterator[Tensor]:
    """All tensors, in the order of the file."""
    width, embed = spec.d_model, spec.embed_dim
    yield maker.random(
        "model.decoder.embed_tokens.weight", (spec.vocab_size, embed), FAST_DEVIATION
    )
    positions = (spec.max_positions + spec.position_offset, width)
    yield Tensor(
        "model.decoder.embed_positions.weight", positions, _decaying(maker.seed, positions)
    )
    # The head is the embedding of tokens: what comes to it has random signs, so that a token does
    # not favour itself.
    logit_scale = head_scale(embed)
    if embed != width:
        across = 1 / math.sqrt(embed)
        yield maker.random("model.decoder.project_in.weight", (width, embed), across)
        out = logit_scale / math.sqrt(width)
        yield maker.random("model.decoder.project_out.weight", (embed, width), out)
    for layer in range(spec.n_layers):
        yield from _layer(spec, maker, layer)
    if spec.final_norm:
        scale = np.float32(logit_scale) * head_signs(spec, maker.seed)
        yield maker.given("model.decoder.final_layer_norm.weight", scale)
        yield maker.constant("model.decoder.final_layer_norm.bias", width, 0.0)


def _layer(spec: ModelSpec, maker: Maker, layer: int) -> Iterator[Tensor]:
    name, width = f"model.decoder.layers.{layer}", spec.d_model
    neurons = Neurons(maker.seed, layer, spec.n_layers, width, spec.d_ffn)
    gain = layer_gain(spec)
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        deviation = (gain if part == "out_proj" else 1.0) / math.sqrt(width)
        yield maker.random(f"{name}.self_attn.{part}.weight", (width, width), deviation)
        yield maker.random(f"{name}.self_attn.{part}.bias", (width,), BIAS_DEVIATION)
    yield Tensor(f"{name}.fc1.weight", (spec.d_ffn, width), neurons.deciding)
    yield Tensor(
        f"{name}.fc1.bias",
        (spec.d_ffn,),
        lambda first, count: -neurons.levels[first : first + count],
    )
    yield Tensor(
        f"{name}.fc2.weight",
        (width, spec.d_ffn),
        lambda first, count: neurons.adding(first, count, gain),
    )
    yield maker.random(f"{name}.fc2.bias", (width,), BIAS_DEVIATION)
    for norm in ("self_attn_layer_norm", "final_layer_norm"):
        yield maker.constant(f"{name}.{norm}.weight", width, 1.0)
        yield maker.constant(f"{name}.{norm}.bias", width, 0.0)


def _decaying(seed: int, shape: tuple[int, ...]) -> Rows:
    """Rows of a stationary process over positions, [positions, width]; made from the start on."""

    def rows(first: int, count: int) -> NDArray[np.float32]:
        random = generator(seed, *b"positions")
        state = normals(random, shape[1:])
        values = np.empty((count, shape[1]), np.float32)
        for position in range(first + count):
            if position >= first:
                values[position - first] = state
            state = SLOW_DECAY * state
            state += normals(random, shape[1:], math.sqrt(1 - SLOW_DECAY**2))
        values *= math.sqrt(SLOW_SHARE)
        return values

    return rows
