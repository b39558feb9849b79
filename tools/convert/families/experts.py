"""Families whose feed-forward layers are mixtures of experts, and how checkpoints hold experts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.spec import MAX_EXPERTS, MAX_WIDTH, ModelSpec, MoeSpec

from .config import Config
from .family import ROTARY_BUFFERS, ExpertNames, window_size, windows_alike, windows_by_layer
from .gated import EMBEDDING, HEAD, LAYER, LLAMA, NORMS, attention, biases, rms_features
from .transforms import Rows


def fused(block: str) -> ExpertNames:
    """All experts of a layer in two tensors, the rows of gate in front of those of up."""
    gate_up = f"{block}.experts.gate_up_proj"
    return ExpertNames(f"{block}.gate.weight", gate_up, gate_up, f"{block}.experts.down_proj")


def separate(block: str, gate: str, up: str, down: str) -> ExpertNames:
    """Each matrix of each expert in a tensor of its own."""
    gate, up, down = (f"{block}.experts.{{e}}.{name}.weight" for name in (gate, up, down))
    return ExpertNames(f"{block}.gate.weight", gate, up, down)


def expert_source(
    names: ExpertNames, spec: ModelSpec, layer: int
) -> Iterator[tuple[str, tuple[int, ...], Rows]]:
    """Tensor, its shape and the rows of it that are ours: of each expert gate, up and down."""
    experts = spec.experts
    assert experts is not None
    width, neurons = spec.d_model, experts.d_ffn
    for expert in range(experts.n_experts):
        gate, up, down = (
            name.format(i=layer, e=expert) for name in (names.gate, names.up, names.down)
        )
        if not names.is_fused:
            yield gate, (neurons, width), Rows(0, neurons, neurons, 1)
            yield up, (neurons, width), Rows(0, neurons, neurons, 1)
            yield down, (width, neurons), Rows(0, width, width, 1)
            continue
        first = 2 * expert * neurons
        shape = (experts.n_experts, 2 * neurons, width)
        yield gate, shape, Rows(first, neurons, neurons, 1)
        yield up, shape, Rows(first + neurons, neurons, neurons, 1)
        shape = (experts.n_experts, width, neurons)
        yield down, shape, Rows(expert * width, width, width, 1)


def expert_count(config: Config) -> int:
    """The number of experts, by either of its names."""
    names = ("num_experts", "num_local_experts")
    given = {name: config.get(name) for name in names if config.get(name) is not None}
    if len(set(map(repr, given.values()))) > 1:
        raise UnsupportedModel(
            f"{config.path}: num_experts is {given['num_experts']!r}, but num_local_experts is"
            f" {given['num_local_experts']!r}"
        )
    return config.size(config.first(*names), MAX_EXPERTS)


def _experts(config: Config, width_key: str, *, renormalise: bool) -> dict[str, Any]:
    """Features of a layer of experts whose router takes the softmax over all of them."""
    per_token = config.size("num_experts_per_tok", MAX_EXPERTS)
    experts = expert_count(config)
    if per_token > experts:
        raise UnsupportedModel(
            f"{config.path}: num_experts_per_tok is {per_token}, but there are {experts} experts"
        )
    neurons = config.size(width_key, MAX_WIDTH)
    return {
        "d_ffn": experts * neurons,
        "neurons_per_bundle": neurons,
        "experts": MoeSpec(experts, per_token, neurons, renormalise=renormalise),
    }


def _qwen3_moe_features(config: Config) -> dict[str, Any]:
    """Features of a Qwen3 with experts (arXiv 2505.09388)."""
    everywhere = "only models with experts in all layers are supported"
    if config.get("mlp_only_layers"):
        raise config.refuse("mlp_only_layers", everywhere)
    if config.size("decoder_sparse_step", MAX_WIDTH, default=1) != 1:
        raise config.refuse("decoder_sparse_step", everywhere)
    experts = _experts(
        config, "moe_intermediate_size", renormalise=config.flag("norm_topk_prob", False)
    )
    features = rms_features(config, d_ffn=experts["d_ffn"], max_positions=32768)
    used = config.flag("use_sliding_window", False)
    size = window_size(config, None)
    windows = windows_alike(config, features["n_layers"], size if used else None)
    bias = biases(config)
    return features | bias | experts | {"qk_norm": True, "attention_windows": windows}


QWEN3_MOE = replace(
    LLAMA,
    model_type="qwen3_moe",
    features=_qwen3_moe_features,
    rows=(EMBEDDING, *HEAD, *attention(), *NORMS),
    experts=(separate(f"{LAYER}.mlp", "gate_proj", "up_proj", "down_proj"), fused(f"{LAYER}.mlp")),
    special_ids={},
)


def _olmoe_features(config: Config) -> dict[str, Any]:
    """Features of an OLMoE (Muennighoff et al. 2024, arXiv 2409.02060)."""
    if config.get("clip_qkv") is not None:
        raise config.refuse("clip_qkv", "only models that clip nothing are supported")
    experts = _experts(
        config, "intermediate_size", renormalise=config.flag("norm_topk_prob", False)
    )
    features = rms_features(config, eps=1e-5, d_ffn=experts["d_ffn"], max_positions=4096)
    windows = windows_alike(config, features["n_layers"], None)
    bias = biases(config)
    return (
        features
        | bias
        | experts
        | {"qk_norm": True, "qk_norm_whole": True, "attention_windows": windows}
    )


OLMOE = replace(
    QWEN3_MOE,
    model_type="olmoe",
    features=_olmoe_features,
    special_ids={"eos_token_id": 50279},
)


def _mixtral_features(config: Config) -> dict[str, Any]:
    """Features of a Mixtral (Jiang et al. 2024, arXiv 2401.04088)."""
    experts = _experts(config, "intermediate_size", renormalise=True)
    features = rms_features(config, eps=1e-5, d_ffn=experts["d_ffn"], max_positions=4096 * 32)
    size = window_size(config, None)
    windows = windows_alike(config, features["n_layers"], size)
    return features | experts | {"attention_windows": windows}


MIXTRAL = replace(
    QWEN3_MOE,
    model_type="mixtral",
    features=_mixtral_features,
    experts=(separate(f"{LAYER}.block_sparse_moe", "w1", "w3", "w2"), fused(f"{LAYER}.mlp")),
    special_ids={"bos_token_id": 1, "eos_token_id": 2},
)


def _granite_features(config: Config) -> dict[str, Any]:
    """Features of a Granite with experts (IBM, 2024), scaled in four places."""
    # The softmax over the chosen logits is that over all of them, divided by the sum of the chosen.
    experts = _experts(config, "intermediate_size", renormalise=True)
    features = rms_features(config, d_ffn=experts["d_ffn"])
    windows = windows_alike(config, features["n_layers"], None)
    return (
        features
        | biases(config)
        | experts
        | {
            "attention_windows": windows,
            "attention_scale": config.number("attention_multiplier", 1.0),
            "embed_scale": config.number("embedding_multiplier", 1.0),
            "residual_scale": config.number("residual_multiplier", 1.0),
            "logit_scale": 1.0 / config.number("logits_scaling", 1.0),
        }
    )


_GRANITE_BLOCK = f"{LAYER}.block_sparse_moe"

GRANITE_MOE = replace(
    QWEN3_MOE,
    model_type="granitemoe",
    features=_granite_features,
    experts=(
        ExpertNames(
            router=f"{_GRANITE_BLOCK}.router.layer.weight",
            gate=f"{_GRANITE_BLOCK}.input_linear.weight",
            up=f"{_GRANITE_BLOCK}.input_linear.weight",
            down=f"{_GRANITE_BLOCK}.output_linear.weight",
        ),
        replace(fused(_GRANITE_BLOCK), router=f"{_GRANITE_BLOCK}.router.weight"),
    ),
)


def _mellum_features(config: Config) -> dict[str, Any]:
    """Features of a Mellum 2 (JetBrains, 2026): positions of their own where attention slides."""
    kinds = config.get("mlp_layer_types")
    if kinds is not None and (not isinstance(kinds, list) or set(kinds) != {"sparse"}):
        raise config.refuse(
            "mlp_layer_types", "only models with experts in all layers are supported"
        )
    # What predicts several tokens at once is left out.
    config.asked.update(("mtp_layer_types", "mtp_mlp_layer_types"))
    experts = _experts(
        config, "moe_intermediate_size", renormalise=config.flag("norm_topk_prob", True)
    )
    everywhere, windowed = _ropes_by_layer(config)
    features = rms_features(everywhere, d_ffn=experts["d_ffn"], head_dim=128, max_positions=131072)
    layers = features["n_layers"]
    windows: tuple[int, ...] = ()
    if config.get("layer_types") is not None:
        windows = windows_by_layer(config, layers, window_size(config, 1024))
    else:
        window_size(config, 1024)
    own = rms_features(windowed, d_ffn=experts["d_ffn"], head_dim=128, max_positions=131072)
    window_rope = own["rope"] if any(windows) and own["rope"] != features["rope"] else None
    return (
        features
        | biases(config)
        | experts
        | {"qk_norm": True, "attention_windows": windows, "window_rope": window_rope}
    )


def _ropes_by_layer(config: Config) -> tuple[Config, Config]:
    """The configuration as layers that see everything read it, and as those with a window do."""
    given = config.get("rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    if given is None:
        given = {kind: {"rope_theta": theta} for kind, theta in zip(kinds, (5e5, 1e4), strict=True)}
    if not isinstance(given, dict):
        raise NotACheckpoint(f"{config.path}: rope_parameters is {given!r}; expected an object")
    if not any(kind in given for kind in kinds):
        return config, config
    if absent := [kind for kind in kinds if kind not in given]:
        raise config.refuse("rope_parameters", f"it says nothing of {absent[0]}")
    return tuple(  # type: ignore[return-value]
        replace(config, values=config.values | {"rope_parameters": given.get(kind)})
        for kind in kinds
    )


MELLUM = replace(
    QWEN3_MOE,
    model_type="mellum",
    features=_mellum_features,
    ignored=(ROTARY_BUFFERS, re.compile(r"mtp\..*")),
)

EXPERTS = (QWEN3_MOE, OLMOE, MIXTRAL, GRANITE_MOE, MELLUM)
