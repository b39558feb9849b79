"""SmallThinker in plain torch, after its published description: no library has it.

Each layer's router reads the residual stream as it comes into the layer. Some layers have a sliding
window, and some know no positions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, rms_norm

CONFIG: dict[str, Any] = {
    "model_type": "smallthinker",
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "moe_num_primary_experts": 7,
    "moe_num_active_primary_experts": 3,
    "moe_ffn_hidden_size": 19,
    "moe_primary_router_apply_softmax": False,
    "norm_topk_prob": True,
    "rope_theta": 5000.0,
    "rope_layout": [1, 1, 1],
    "sliding_window_layout": [0, 0, 0],
    "sliding_window_size": 9,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}


class SmallThinker:
    """A random model; `changes` go over `CONFIG`. Called with ids, it gives all logits."""

    def __init__(self, **changes: Any) -> None:
        self.config = {**CONFIG, **changes}
        self._generator = torch.Generator().manual_seed(0)
        c = self.config
        width, heads = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
        keys, neurons = c["num_key_value_heads"] * c["head_dim"], c["moe_ffn_hidden_size"]
        shapes = {
            "model.embed_tokens.weight": (c["vocab_size"], width),
            "model.norm.weight": (width,),
        }
        if not c["tie_word_embeddings"]:
            shapes["lm_head.weight"] = (c["vocab_size"], width)
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            for name, rows in (("q", heads), ("k", keys), ("v", keys)):
                shapes[f"{at}.self_attn.{name}_proj.weight"] = (rows, width)
            shapes[f"{at}.self_attn.o_proj.weight"] = (width, heads)
            shapes[f"{at}.input_layernorm.weight"] = (width,)
            shapes[f"{at}.post_attention_layernorm.weight"] = (width,)
            block = f"{at}.block_sparse_moe"
            shapes[f"{block}.primary_router.weight"] = (c["moe_num_primary_experts"], width)
            for expert in range(c["moe_num_primary_experts"]):
                for name in ("gate", "up"):
                    shapes[f"{block}.experts.{expert}.{name}.weight"] = (neurons, width)
                shapes[f"{block}.experts.{expert}.down.weight"] = (width, neurons)
        self.weights = {name: self._random(shape) for name, shape in shapes.items()}

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=self._generator)
        return 1 + 0.3 * noise if len(shape) == 1 else noise * 0.9 / shape[1] ** 0.5

    def save(self, directory: Path) -> Path:
        """As the published checkpoints lie."""
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(self.config))
        save_file(self.weights, directory / "model.safetensors", metadata={"format": "pt"})
        return directory

    def __call__(self, ids: list[int]) -> Any:
        c, w = self.config, self.weights
        x = w["model.embed_tokens.weight"][torch.tensor(ids)]
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            block = x
            x = x + self._attention(at, layer, self._norm(x, f"{at}.input_layernorm"))
            x = x + self._experts(
                f"{at}.block_sparse_moe", block, self._norm(x, f"{at}.post_attention_layernorm")
            )
        tied = c["tie_word_embeddings"]
        head = w["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return linear(self._norm(x, "model.norm"), head).numpy()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return rms_norm(x, (x.shape[-1],), self.weights[f"{name}.weight"], eps)

    def _attention(self, at: str, layer: int, x: Tensor) -> Tensor:
        c, tokens = self.config, len(x)
        query, key, value = (
            linear(x, self.weights[f"{at}.self_attn.{name}_proj.weight"])
            .view(tokens, -1, c["head_dim"])
            .transpose(0, 1)
            for name in "qkv"
        )
        if c["rope_layout"][layer]:
            query, key = self._rotated(query), self._rotated(key)
        shared = c["num_attention_heads"] // c["num_key_value_heads"]
        key, value = key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0)
        positions = torch.arange(tokens)
        distance = positions[:, None] - positions[None]
        seen = distance >= 0
        if c["sliding_window_layout"][layer]:
            seen &= distance < c["sliding_window_size"]
        scores = (query @ key.transpose(1, 2)) * c["head_dim"] ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        mixed = (weights @ value).transpose(0, 1).reshape(tokens, -1)
        return linear(mixed, self.weights[f"{at}.self_attn.o_proj.weight"])

    def _rotated(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        frequencies = self.config["rope_theta"] ** -(torch.arange(half) / half)
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        first, second = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _experts(self, block: str, router_input: Tensor, x: Tensor) -> Tensor:
        c, w = self.config, self.weights
        logits = linear(router_input, w[f"{block}.primary_router.weight"])
        values, chosen = logits.topk(c["moe_num_active_primary_experts"], -1)
        if c["moe_primary_router_apply_softmax"]:
            weights = values.softmax(-1)
        else:
            weights = values.sigmoid() / values.sigmoid().sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for token, (experts, shares) in enumerate(zip(chosen.tolist(), weights, strict=True)):
            for expert, share in zip(experts, shares, strict=True):
                gate, up, down = (
                    w[f"{block}.experts.{expert}.{name}.weight"] for name in ("gate", "up", "down")
                )
                hidden = linear(x[token], up) * linear(x[token], gate).relu()
                out[token] += share * linear(hidden, down)
        return out
