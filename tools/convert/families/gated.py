"""Families whose feed-forward layer has a gate: one graph, and what each does differently."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .activation import GATED_NAMES
from .config import Config
from .family import (
    Family,
    Row,
    fused_qkv,
    linear,
    neuron,
    norm,
    rotary_features,
    window_size,
    windows_alike,
    windows_by_layer,
)

LAYER = "layers.{i}"
EMBEDDING = Row("embed.weight", "embed_tokens.weight", ("vocab_size", "embed_dim"))
HEAD = linear("head", "lm_head", "vocab_size", "embed_dim")


def attention(output: str = "o_proj") -> tuple[Row, ...]:
    """Separate query, key, value and output projections, and the norms of queries and keys."""
    source = f"{LAYER}.self_attn"
    return (
        *linear("layers.{i}.attn.q", f"{source}.q_proj", "q_rows", "d_model"),
        *linear("layers.{i}.attn.k", f"{source}.k_proj", "kv_rows", "d_model"),
        *linear("layers.{i}.attn.v", f"{source}.v_proj", "kv_rows", "d_model"),
        *linear("layers.{i}.attn.o", f"{source}.{output}", "d_model", "q_rows"),
        Row("layers.{i}.attn.q_norm.weight", f"{source}.q_norm.weight", ("q_norm",)),
        Row("layers.{i}.attn.k_norm.weight", f"{source}.k_norm.weight", ("k_norm",)),
    )


NORMS = (
    *norm("final_norm", "norm"),
    *norm("layers.{i}.attn_norm", f"{LAYER}.input_layernorm"),
    *norm("layers.{i}.ffn_norm", f"{LAYER}.post_attention_layernorm"),
)
_ROWS = (
    EMBEDDING,
    *HEAD,
    *attention(),
    *NORMS,
    *neuron(f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.down_proj", f"{LAYER}.mlp.gate_proj"),
)


def rms_features(config: Config, *, eps: float = 1e-6, **known: Any) -> dict[str, Any]:
    """Rotary positions and RMS norms without biases; `eps` where none is given."""
    return rotary_features(config, **known) | {
        "norm": "rms",
        "norm_bias": False,
        "norm_eps": config.number("rms_norm_eps", eps),
    }


def biases(config: Config) -> dict[str, Any]:
    """Biases that two settings switch on for all projections of a kind."""
    attention_bias = config.flag("attention_bias", False)
    return {
        "attention_bias": attention_bias,
        "attention_output_bias": attention_bias,
        "ffn_bias": config.flag("mlp_bias", False),
    }


def _llama_features(config: Config) -> dict[str, Any]:
    """Features of a Llama (Touvron et al. 2023, arXiv 2307.09288)."""
    features = rms_features(config)
    windows = windows_alike(config, features["n_layers"], None)
    return features | biases(config) | {"attention_windows": windows}


LLAMA = Family(
    model_type="llama",
    features=_llama_features,
    rows=_ROWS,
    gated=True,
    activations=GATED_NAMES,
    special_ids={"bos_token_id": 1, "eos_token_id": 2},
)
# ProSparse (Song et al. 2024, arXiv 2402.13516): the same graph under a name of its own.
SPARSE_LLAMA = replace(LLAMA, model_type="sparsellama")


def _mistral_features(config: Config, window: int | None = 4096) -> dict[str, Any]:
    """Features of a Mistral (Jiang et al. 2023, arXiv 2310.06825); `window` where none is given."""
    kv_heads = None if "num_key_value_heads" in config.values else 8
    features = rms_features(config, kv_heads=kv_heads, max_positions=4096 * 32)
    size = window_size(config, window)
    return features | {"attention_windows": windows_alike(config, features["n_layers"], size)}


MISTRAL = replace(LLAMA, model_type="mistral", features=_mistral_features)


def _bamboo_features(config: Config) -> dict[str, Any]:
    """Features of a Bamboo or a TurboSparse (Song et al. 2024, arXiv 2406.05955)."""
    # What the predictor that comes with it goes by is not the model's own arithmetic.
    config.asked.add("sparse_threshold")
    return _mistral_features(config, window=None)


BAMBOO = replace(
    LLAMA,
    model_type="bamboo",
    features=_bamboo_features,
    # It applies its activation to the gate and to up.
    activations={"relu": "drelu", "drelu": "drelu"},
    activation_default="relu",
    predictor=(f"{LAYER}.mlp.predictor.fc1.weight", f"{LAYER}.mlp.predictor.fc2.weight"),
)


def _qwen_windows(config: Config, n_layers: int) -> tuple[int, ...]:
    used = config.flag("use_sliding_window", False)
    size = window_size(config, 4096)
    return windows_by_layer(config, n_layers, size if used else None)


def _qwen2_features(config: Config) -> dict[str, Any]:
    """Features of a Qwen2 (arXiv 2407.10671): biases of query, key and value, always."""
    features = rms_features(config, max_positions=32768)
    config.asked.add("attention_bias")
    return features | {
        "attention_bias": True,
        "attention_windows": _qwen_windows(config, features["n_layers"]),
    }


QWEN2 = replace(LLAMA, model_type="qwen2", features=_qwen2_features, special_ids={})


def _qwen3_features(config: Config) -> dict[str, Any]:
    """Features of a Qwen3 (arXiv 2505.09388): norms of queries and keys, wide heads."""
    features = rms_features(config, head_dim=128, max_positions=32768)
    bias = config.flag("attention_bias", False)
    return features | {
        "attention_bias": bias,
        "attention_output_bias": bias,
        "qk_norm": True,
        "attention_windows": _qwen_windows(config, features["n_layers"]),
    }


QWEN3 = replace(LLAMA, model_type="qwen3", features=_qwen3_features, special_ids={})


def _minicpm_features(config: Config) -> dict[str, Any]:
    """Features of a MiniCPM (Hu et al. 2024, arXiv 2404.06395): scaled in three places."""
    features = rms_features(config, tied=True)
    return features | {
        "embed_scale": config.number("scale_emb"),
        "residual_scale": config.number("scale_depth") / math.sqrt(features["n_layers"]),
        "logit_scale": config.number("dim_model_base") / features["d_model"],
    }


MINICPM = replace(LLAMA, model_type="minicpm", features=_minicpm_features)


def _phi3_features(config: Config) -> dict[str, Any]:
    """Features of a Phi-3 (Abdin et al. 2024, arXiv 2404.14219)."""
    features = rms_features(config, eps=1e-5, max_positions=4096, partial=True, kinds=("default",))
    size = window_size(config, None)
    return features | {"attention_windows": windows_alike(config, features["n_layers"], size)}


_GATE_UP = f"{LAYER}.mlp.gate_up_proj.weight"

PHI3 = replace(
    LLAMA,
    model_type="phi3",
    features=_phi3_features,
    rows=(
        EMBEDDING,
        *HEAD,
        *fused_qkv(f"{LAYER}.self_attn.qkv_proj", "stack"),
        *linear("layers.{i}.attn.o", f"{LAYER}.self_attn.o_proj", "d_model", "q_rows"),
        *NORMS,
        Row(
            "layers.{i}.ffn.gate.weight",
            _GATE_UP,
            ("gate_up_rows", "d_model"),
            "gate",
            part="first half",
        ),
        Row(
            "layers.{i}.ffn.up",
            _GATE_UP,
            ("gate_up_rows", "d_model"),
            "bundle",
            part="second half",
        ),
        Row(
            "layers.{i}.ffn.down",
            f"{LAYER}.mlp.down_proj.weight",
            ("d_model", "d_ffn"),
            "bundle",
            "transpose",
        ),
    ),
    special_ids={"bos_token_id": 1, "eos_token_id": 32000},
)

GATED = (LLAMA, SPARSE_LLAMA, MISTRAL, BAMBOO, QWEN2, QWEN3, MINICPM, PHI3)
