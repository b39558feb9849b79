"""A decoder in plain torch, for families that transformers has no class for.

It reads a dictionary of tensors by the names that checkpoints use and knows nothing of flashllm.
Sources: the remote code's arithmetic as its authors describe it, MiniCPM (arXiv 2404.06395, section
3 and appendix A: muP's three scalings) and TurboSparse (arXiv 2406.05955, section 4: dReLU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Hidden = Callable[[Tensor, Tensor], Tensor]
"""(gate, up) [tokens, d_ffn] -> what the down projection gets."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder and what it multiplies by."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    theta: float = 10000.0
    window: int | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0


def drelu(gate: Tensor, up: Tensor) -> Tensor:
    """Relu of both."""
    return torch.relu(gate) * torch.relu(up)


def fatrelu(threshold: float) -> Hidden:
    """The gate where it exceeds the threshold."""
    return lambda gate, up: gate * (gate > threshold) * up


@torch.no_grad()
def logits(ids: list[int], tensors: Mapping[str, Tensor], shape: Shape, hidden: Hidden) -> Tensor:
    """Logits [tokens, vocab] of a sequence, with no cache."""
    x = tensors["model.embed_tokens.weight"][ids] * shape.embed_scale
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        normed = _rms(x, own["input_layernorm.weight"], shape.eps)
        x = x + shape.residual_scale * _attention(normed, own, shape)
        normed = _rms(x, own["post_attention_layernorm.weight"], shape.eps)
        between = hidden(
            normed @ own["mlp.gate_proj.weight"].T, normed @ own["mlp.up_proj.weight"].T
        )
        x = x + shape.residual_scale * (between @ own["mlp.down_proj.weight"].T)
    x = _rms(x, tensors["model.norm.weight"], shape.eps) * shape.logit_scale
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return x @ head.T


@torch.no_grad()
def stream_before_ffn(ids: list[int], tensors: Mapping[str, Tensor], shape: Shape) -> Tensor:
    """The residual stream [tokens, d_model] that the first layer's second norm reads."""
    x = tensors["model.embed_tokens.weight"][ids] * shape.embed_scale
    own = {name.removeprefix("model.layers.0."): tensor for name, tensor in tensors.items()}
    normed = _rms(x, own["input_layernorm.weight"], shape.eps)
    return x + shape.residual_scale * _attention(normed, own, shape)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps)


def _attention(x: Tensor, own: Mapping[str, Tensor], shape: Shape) -> Tensor:
    """Causal attention [tokens, d_model], one head after the other."""
    tokens = len(x)
    query, key, value = (
        (x @ own[f"self_attn.{name}_proj.weight"].T).view(tokens, -1, shape.head_dim)
        for name in "qkv"
    )
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    unseen = back < 0
    if shape.window is not None:
        unseen = unseen | (back >= shape.window)
    outputs = []
    for head in range(shape.heads):
        shared = head * shape.kv_heads // shape.heads
        q = _rotate(query[:, head], shape.theta)
        k = _rotate(key[:, shared], shape.theta)
        scores = (q @ k.T / math.sqrt(shape.head_dim)).masked_fill(unseen, -math.inf)
        outputs.append(F.softmax(scores, dim=-1) @ value[:, shared])
    return torch.cat(outputs, dim=-1) @ own["self_attn.o_proj.weight"].T


def _rotate(x: Tensor, theta: float) -> Tensor:
    """Dimension i of the first half and of the second turned by position * theta^(-2i/dims)."""
    tokens, dims = x.shape
    half = dims // 2
    angles = torch.arange(tokens)[:, None] * theta ** (-torch.arange(half) * 2 / dims)[None, :]
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.complex(x[:, :half], x[:, half:]) * turn
    return torch.cat([turned.real, turned.imag], dim=-1)
