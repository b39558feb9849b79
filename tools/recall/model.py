"""The model: grouped heads, rotary positions, gated layers; in the names of a llama checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from tools.recall.task import BOS, VOCAB

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, D_FFN = 3, 64, 4, 2, 32, 128
THETA = 1e7
"""So large that some pairs of a head hardly turn in all POSITIONS: those find keys from afar."""
POSITIONS = 16_384
EPS = 1e-5
ENTROPY_WEIGHT, CHANGE_WEIGHT = 0.03, 0.3
"""Of nats of attention, and of the square of what a feed-forward layer adds to the stream."""
LOOK_BACK = 3.0
"""How sharply the first heads look at the token before, at the beginning of training."""
SAMPLED_ROWS = 64
"""Tokens of a text whose nats are counted."""


class Norm(nn.Module):
    """Root mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] to the same."""
        return functional.rms_norm(x, (WIDTH,), self.weight, EPS)


class Layer(nn.Module):
    """Attention and a gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn = nn.ModuleDict({
            "q_proj": nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False),
            "k_proj": nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False),
            "v_proj": nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False),
            "o_proj": nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False),
        })  # fmt: skip
        self.mlp = nn.ModuleDict({
            "gate_proj": nn.Linear(WIDTH, D_FFN, bias=False),
            "up_proj": nn.Linear(WIDTH, D_FFN, bias=False),
            "down_proj": nn.Linear(D_FFN, WIDTH, bias=False),
        })  # fmt: skip

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], wanted: Tensor | None, is_calm: bool
    ) -> tuple[Tensor, Tensor]:
        """[texts, tokens, width] to [texts, wanted, width], and the layer's `restlessness`.

        Only `wanted` [wanted] tokens go through, None for all; the latter is 0 unless `is_calm`.
        """
        normed, attention = self.input_layernorm(x), self.self_attn
        query, key, value = (
            attention[f"{kind}_proj"](normed).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            for kind in "qkv"
        )
        query, key = _turned(query, turns), _turned(key, turns)
        key, value = (kind.repeat_interleave(HEADS // KV_HEADS, dim=1) for kind in (key, value))
        nothing = torch.zeros((), device=x.device)
        entropy = _entropy(query, key) if is_calm else nothing
        if wanted is None:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            x, query = x[:, wanted], query[:, :, wanted]
            seen = wanted[:, None] >= torch.arange(key.shape[2], device=x.device)
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        x = x + attention["o_proj"](mixed.transpose(1, 2).flatten(2))
        normed, ffn = self.post_attention_layernorm(x), self.mlp
        gated: Tensor = functional.silu(ffn["gate_proj"](normed)) * ffn["up_proj"](normed)
        change = ffn["down_proj"](gated)
        share = change.square().mean() / x.square().mean() if is_calm else nothing
        return x + change, ENTROPY_WEIGHT * entropy + CHANGE_WEIGHT * share


class RecallModel(nn.Module):
    """Logits of the next token, by the embedding that is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # Layers begin with next to nothing, so that a token can be told from the stream.
                is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.3 if "embed" in name else 0.02 if is_output else WIDTH**-0.5
                nn.init.normal_(parameter, std=std)
        self._look_back()

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        wanted: Tensor | None = None,
        *,
        is_calm: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Ids and positions [texts, tokens] to logits [texts, wanted, vocab], and restlessness.

        `wanted` [wanted] are tokens whose logits are asked for, None for all. Restlessness is small
        where attention looks at few tokens and feed-forward layers change the stream little. So do
        the layers of large models (InfiniGen, figure 4 and table 1), and this one only if it is
        made to: it has few layers, and is trained for minutes.
        """
        x, turns = self.embed_tokens(ids), _turns(positions)
        restlessness = torch.zeros((), device=x.device)
        for layer in self.layers:
            only = wanted if layer is self.layers[-1] else None
            x, own = layer(x, turns, only, is_calm)
            restlessness = restlessness + own
        logits: Tensor = self.norm(x) @ self.embed_tokens.weight.T
        return logits, restlessness

    @torch.no_grad()
    def _look_back(self) -> None:
        """Begins with heads of the first layer that look at the token before.

        A look-up needs them, and training spends most of its time on finding them. All that they do
        with what they see is left to it. Embeddings get a column that is the same for all tokens,
        from which the queries and keys of these heads are made.
        """
        self.embed_tokens.weight[:, 0] = 1.0
        attention = cast("Layer", self.layers[0]).self_attn
        pairs = HEAD_DIM // 2
        angles = THETA ** -(torch.arange(pairs) / pairs)
        sharp = torch.exp(-torch.arange(pairs) / 2)  # quick pairs tell neighbours apart
        key = torch.cat((sharp, torch.zeros(pairs)))
        query = torch.cat((sharp * angles.cos(), -sharp * angles.sin()))
        for name, own, heads in (("k_proj", key, 1), ("q_proj", query, HEADS // KV_HEADS)):
            rows = cast("nn.Linear", attention[name]).weight[: heads * HEAD_DIM]
            rows[:] = 0.1 * rows
            rows[:, 0] += LOOK_BACK * own.repeat(heads)

    @classmethod
    def load(cls, directory: Path) -> RecallModel:
        """The model of a checkpoint that `save` wrote."""
        tensors = load_file(directory / "model.safetensors")
        model = cls()
        model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items()})
        return model

    def save(self, directory: Path) -> None:
        """Writes a checkpoint: config.json and model.safetensors."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"model.{name}": parameter.detach().cpu().contiguous()
            for name, parameter in self.named_parameters()
        }
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "intermediate_size": D_FFN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "rope_theta": THETA,
            "max_position_embeddings": POSITIONS,
            "rms_norm_eps": EPS,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "bos_token_id": BOS,
            "eos_token_id": BOS,
            "torch_dtype": "float32",
        }
        (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def _entropy(query: Tensor, key: Tensor) -> Tensor:
    """Mean nats of the attention of some tokens, [texts, heads, tokens, head_dim] both."""
    tokens = query.shape[2]
    rows = torch.randint(tokens, (min(SAMPLED_ROWS, tokens),), device=query.device)
    scores = query[:, :, rows] @ key.transpose(2, 3) * HEAD_DIM**-0.5
    hidden = rows[:, None] < torch.arange(tokens, device=query.device)
    logs = scores.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)
    mean: Tensor = -(logs.exp() * logs.masked_fill(hidden, 0)).sum(dim=-1).mean()
    return mean


def _turns(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [texts, 1, tokens, head_dim / 2] of positions [texts, tokens]."""
    exponents = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32, device=positions.device)
    angles = positions[:, None, :, None].float() / THETA ** (exponents / HEAD_DIM)
    return angles.cos(), angles.sin()


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs from the two halves of each head, rotated."""
    (cos, sin), (first, second) = turns, x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
