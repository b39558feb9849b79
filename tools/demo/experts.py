"""A decoder with experts in plain torch: the mathematics of transformers' `Qwen3MoeForCausalLM`.

Pre-norm by root mean squares, rotary positions, norms of queries and keys a head, fewer heads of
keys than of queries, and feed-forward layers of gated experts: a router's softmax chooses the best
few for each token, whose weights are scaled to a sum of 1. The head is tied to the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .model import INIT_STD, attend

NORM_EPS = 1e-6
ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """Sizes of one model; every count is in elements."""

    vocab_size: int
    d_model: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    experts: int = 16
    experts_per_token: int = 2
    expert_ffn_dim: int = 96
    positions_max: int = 512


class RmsNorm(nn.Module):
    """Divides by the root of the mean square over the last axis, then scales."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as x, in 32 bits."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, NORM_EPS)


def rotations(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions, [..., tokens] to [..., 1, tokens, head_dim] (RoFormer)."""
    powers = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = positions.float()[..., None] * ROPE_THETA**-powers
    both = torch.cat([angles, angles], dim=-1).unsqueeze(-3)
    return both.cos(), both.sin()


def rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turned by their positions, [batch, heads, tokens, head_dim]; halves are pairs."""
    left, right = x.chunk(2, dim=-1)
    return x * turns[0] + torch.cat([-right, left], dim=-1) * turns[1]


class GroupedAttention(nn.Module):
    """Causal self-attention with several heads of queries to one of keys and values."""

    def __init__(self, shape: ExpertsShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.d_model, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.d_model, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.d_model, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.d_model, bias=False)
        self.q_norm = RmsNorm(shape.head_dim)
        self.k_norm = RmsNorm(shape.head_dim)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Attends to `past` (keys, values) and to x; leaves both in `cache`."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        batch, tokens, _ = x.shape
        projected = F.linear(x, weight).reshape(batch, tokens, -1, self.shape.head_dim)
        sizes = [heads, kv_heads, kv_heads]
        query, key, value = torch.split(projected.transpose(1, 2), sizes, dim=1)
        query = rotated(self.q_norm(query), turns).to(value.dtype)
        key = rotated(self.k_norm(key), turns).to(value.dtype)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        self.cache = (key, value)
        group = heads // kv_heads
        mixed = attend(query, *(kv.repeat_interleave(group, dim=1) for kv in (key, value)))
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return output


class Experts(nn.Module):
    """Gated experts and their router; each token goes through the best few.

    `active` holds the weights of the last call, [batch, tokens, experts], 0 where not chosen;
    `imbalance` its balancing loss, 1 where all experts are used evenly (Fedus et al. 2021,
    arXiv 2101.03961, 2.2).
    """

    def __init__(self, shape: ExpertsShape) -> None:
        super().__init__()
        self.per_token = shape.experts_per_token
        inner = (shape.experts, shape.expert_ffn_dim, shape.d_model)
        self.router = nn.Linear(shape.d_model, shape.experts, bias=False)
        self.gate_proj = nn.Parameter(torch.empty(inner))
        self.up_proj = nn.Parameter(torch.empty(inner))
        self.down_proj = nn.Parameter(torch.empty(shape.experts, shape.d_model, inner[1]))
        self.active = torch.empty(0)
        self.imbalance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, d_model] to the same."""
        flat = x.reshape(-1, x.shape[-1])
        with torch.autocast("cpu", enabled=False):  # ties and near ties are decided in 32 bits
            chances = F.linear(flat.float(), self.router.weight).softmax(-1)
        weights, chosen = chances.topk(self.per_token, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        self._note(x, chances, weights, chosen)
        order = chosen.flatten().argsort(stable=True)
        owners = order // self.per_token
        counts = chosen.flatten().bincount(minlength=chances.shape[-1]).tolist()
        outputs = self._run(flat[owners], counts) * weights.flatten()[order][:, None]
        return torch.zeros_like(flat).index_add(0, owners, outputs.to(flat.dtype)).view(x.shape)

    def _run(self, inputs: Tensor, counts: list[int]) -> Tensor:
        """Rows through their experts, [rows, d_model]; expert e has the next counts[e] rows."""
        is_mixed = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if is_mixed else inputs.dtype
        both = torch.cat([self.gate_proj, self.up_proj], dim=1).to(dtype).unbind()
        down = self.down_proj.to(dtype).unbind()
        outputs = []
        for expert, rows in enumerate(torch.split(inputs.to(dtype), counts)):
            if len(rows):
                gate, up = F.linear(rows, both[expert]).chunk(2, dim=-1)
                outputs.append(F.linear(F.silu(gate) * up, down[expert]))
        return torch.cat(outputs)

    def _note(self, x: Tensor, chances: Tensor, weights: Tensor, chosen: Tensor) -> None:
        active = torch.zeros_like(chances).scatter(1, chosen, weights.detach())
        self.active = active.detach().view(*x.shape[:-1], -1)
        shares = (self.active > 0).float().flatten(0, -2).mean(0) / self.per_token
        self.imbalance = chances.shape[-1] * (shares * chances.mean(0)).sum()


class ExpertsLayer(nn.Module):
    """One pre-norm block."""

    def __init__(self, shape: ExpertsShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.d_model)
        self.self_attn = GroupedAttention(shape)
        self.post_attention_layernorm = RmsNorm(shape.d_model)
        self.mlp = Experts(shape)

    @property
    def active(self) -> Tensor:
        """Weights of the experts in the last call, [batch, tokens, experts], mostly 0."""
        return self.mlp.active

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """One step of the residual stream, [batch, tokens, d_model]."""
        x = x + self.self_attn(self.input_layernorm(x), turns, past)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class ExpertsDecoder(nn.Module):
    """Token ids [batch, tokens] to final hidden states [batch, tokens, d_model]."""

    def __init__(self, shape: ExpertsShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.d_model)
        self.layers = nn.ModuleList(ExpertsLayer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.d_model)
        residual_std = INIT_STD / (2 * shape.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                writes = name.endswith(("o_proj.weight", "down_proj"))
                nn.init.normal_(parameter, std=residual_std if writes else INIT_STD)

    @property
    def blocks(self) -> list[ExpertsLayer]:
        """The layers, by their own type."""
        return cast("list[ExpertsLayer]", list(self.layers))

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        past: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """`positions` count from 0, [tokens] or [batch, tokens]; `past` is what `caches` gave."""
        x = self.embed_tokens(ids)
        turns = rotations(positions, self.shape.head_dim)
        for index, layer in enumerate(self.blocks):
            x = layer(x, turns, None if past is None else past[index])
        output: Tensor = self.norm(x)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [..., vocab_size], by the tied head."""
        return F.linear(hidden, self.embed_tokens.weight)

    def caches(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the last call, a pair a layer, [batch, kv_heads, tokens, head_dim]."""
        return [layer.self_attn.cache for layer in self.blocks]

    def imbalance(self) -> Tensor:
        """Mean over the layers of how unevenly the last call used the experts; 1 is evenly."""
        return torch.stack([layer.mlp.imbalance for layer in self.blocks]).mean()
