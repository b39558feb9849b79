"""Families whose feed-forward layer has rotary positions and no gate."""

from __future__ import annotations

from typing import Any

from .config import Config
from .family import Family, neuron, norm, rotary_features
from .gated import EMBEDDING, HEAD, LAYER, NORMS, attention, biases, rms_features

_NEURON = neuron(f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.down_proj")


def _arcee_features(config: Config) -> dict[str, Any]:
    """Features of an AFM of Arcee: squared relu and no gate, otherwise the common graph."""
    return rms_features(config, eps=1e-5, max_positions=4096) | biases(config)


ARCEE = Family(
    model_type="arcee",
    features=_arcee_features,
    rows=(EMBEDDING, *HEAD, *attention(), *NORMS, *_NEURON),
    activation_default="relu2",
    special_ids={"bos_token_id": 128000, "eos_token_id": 128001},
)


def _nemotron_features(config: Config) -> dict[str, Any]:
    """Features of a Nemotron (Parmar et al. 2024, arXiv 2402.16819)."""
    features = rotary_features(config, max_positions=4096, share=0.5, partial=True)
    return features | biases(config) | {"norm_eps": config.number("norm_eps", 1e-5)}


NEMOTRON = Family(
    model_type="nemotron",
    features=_nemotron_features,
    rows=(
        EMBEDDING,
        *HEAD,
        *attention(),
        # Its norms scale by one more than their weight.
        *norm("final_norm", "norm", "plus one"),
        *norm("layers.{i}.attn_norm", f"{LAYER}.input_layernorm", "plus one"),
        *norm("layers.{i}.ffn_norm", f"{LAYER}.post_attention_layernorm", "plus one"),
        *_NEURON,
    ),
    activation_default="relu2",
    special_ids={"bos_token_id": 2, "eos_token_id": 3},
)


def _phi_features(config: Config) -> dict[str, Any]:
    """Features of a Phi-1.5 or a Phi-2 (Li et al. 2023, arXiv 2309.05463): biases everywhere."""
    if config.flag("qk_layernorm", False):
        raise config.refuse("qk_layernorm", "only models without it are supported")
    return rotary_features(config, share=0.5, partial=True) | {
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "attention_bias": True,
        "attention_output_bias": True,
        "ffn_bias": True,
        "head_bias": True,
        "block": "parallel",
        "shared_norm": True,
    }


PHI = Family(
    model_type="phi",
    features=_phi_features,
    rows=(
        EMBEDDING,
        *HEAD,
        *attention("dense"),
        *norm("final_norm", "final_layernorm"),
        *norm("layers.{i}.attn_norm", f"{LAYER}.input_layernorm"),
        *neuron(f"{LAYER}.mlp.fc1", f"{LAYER}.mlp.fc2"),
    ),
    activation_default="gelu_new",
    special_ids={"bos_token_id": 1, "eos_token_id": 2},
)

UNGATED = (ARCEE, NEMOTRON, PHI)
