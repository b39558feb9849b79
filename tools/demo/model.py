"""The OPT decoder in plain torch, as small as training it needs.

Same mathematics and tensor names as the `OPTForCausalLM` of Hugging Face transformers: pre-norm,
biases everywhere, ReLU, learned positions behind an offset of 2, queries scaled by head_dim **
-0.5, a final layer norm and a head tied to the token embedding. Nothing else of that family is
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

POSITION_OFFSET = 2  # Hugging Face's OPT keeps two unused rows in front of position 0
INIT_STD = 0.02
PLAIN_TOKENS_MAX = 128  # up to here plain products beat the fused kernel's backward on a CPU


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model; every count is in elements."""

    vocab_size: int
    d_model: int = 320
    layers: int = 5
    heads: int = 5
    ffn_dim: int = 1536
    positions_max: int = 512


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention, [batch, heads, tokens, head_dim]; the last query stands at the last key."""
    queries, keys = query.shape[2], key.shape[2]
    if queries == keys and queries > PLAIN_TOKENS_MAX:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(2, 3)
    future = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    chances = scores.masked_fill(future, -1e4).softmax(-1).to(value.dtype)
    mixed: Tensor = chances @ value
    return mixed


class Attention(nn.Module):
    """Causal self-attention: [batch, tokens, d_model] to the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.k_proj = nn.Linear(shape.d_model, shape.d_model)
        self.v_proj = nn.Linear(shape.d_model, shape.d_model)
        self.q_proj = nn.Linear(shape.d_model, shape.d_model)
        self.out_proj = nn.Linear(shape.d_model, shape.d_model)

    def _split(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        return x.reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> Tensor:
        """Attends to `past` (keys, values) and to x; leaves both in `cache`."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        weight = torch.cat([p.weight for p in projections])  # one product instead of three
        bias = torch.cat([p.bias for p in projections])
        query, key, value = map(self._split, F.linear(x, weight, bias).chunk(3, dim=-1))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        self.cache = (key, value)
        mixed = attend(query, key, value)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(x.shape))
        return output


class DecoderLayer(nn.Module):
    """One pre-norm block; `active`: ReLU outputs of the last call, [batch, tokens, ffn_dim]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.self_attn_layer_norm = nn.LayerNorm(shape.d_model)
        self.fc1 = nn.Linear(shape.d_model, shape.ffn_dim)
        self.fc2 = nn.Linear(shape.ffn_dim, shape.d_model)
        self.final_layer_norm = nn.LayerNorm(shape.d_model)
        self.active = torch.empty(0)
        self.l1 = 0.0  # coefficient of the mean ReLU output in the loss

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> Tensor:
        """One step of the residual stream, [batch, tokens, d_model]."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), past)
        active = F.relu(self.fc1(self.final_layer_norm(x)))
        self.active = active.detach()
        if self.l1 > 0:
            active = _ConstantGradient.apply(  # type: ignore[no-untyped-call]
                active, self.l1 / active.numel()
            )
        output: Tensor = x + self.fc2(active)
        return output


class _ConstantGradient(torch.autograd.Function):
    """The identity with a constant added to its gradient: an L1 penalty on ReLU outputs."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, constant: float) -> Tensor:
        ctx.constant = constant  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient + ctx.constant, None  # type: ignore[attr-defined]


class Decoder(nn.Module):
    """Token ids [batch, tokens] to final hidden states [batch, tokens, d_model]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.d_model)
        self.embed_positions = nn.Embedding(shape.positions_max + POSITION_OFFSET, shape.d_model)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.final_layer_norm = nn.LayerNorm(shape.d_model)
        self.apply(_initialise)
        residual_std = INIT_STD / (2 * shape.layers) ** 0.5
        for layer in self.blocks:
            nn.init.normal_(layer.self_attn.out_proj.weight, std=residual_std)
            nn.init.normal_(layer.fc2.weight, std=residual_std)

    @property
    def blocks(self) -> list[DecoderLayer]:
        """The layers, by their own type."""
        return cast("list[DecoderLayer]", list(self.layers))

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        past: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """`positions` count from 0, [tokens] or [batch, tokens]; `past` is what `caches` gave."""
        x = self.embed_tokens(ids) + self.embed_positions(positions + POSITION_OFFSET)
        for index, layer in enumerate(self.blocks):
            x = layer(x, None if past is None else past[index])
        output: Tensor = self.final_layer_norm(x)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [..., vocab_size], by the tied head."""
        return F.linear(hidden, self.embed_tokens.weight)

    def caches(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the last call, a pair a layer, [batch, heads, tokens, head_dim]."""
        return [layer.self_attn.cache for layer in self.blocks]

    def press_for_zeros(self, coefficient: float) -> None:
        """How strongly the next step drives ReLU outputs to 0: the weight of their mean."""
        for layer in self.blocks:
            layer.l1 = coefficient

    def imbalance(self) -> float:
        """Nothing to balance: there are no experts."""
        return 0.0


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=INIT_STD)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
