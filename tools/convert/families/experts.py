"""Families whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.spec import MAX_EXPERTS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH, MoeSpec

from .config import Config
from .expert_storage import alternating, fused, fused_in, in_blocks, separate, stacked_in
from .family import ROTARY_BUFFERS, Row, window_size, windows_alike, windows_by_layer
from .gated import EMBEDDING, HEAD, LAYER, LLAMA, NORMS, attention, biases, rms_features


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


def _experts(
    config: Config,
    width_key: str,
    *,
    renormalise: bool,
    chosen_key: str = "num_experts_per_tok",
    count_key: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Features of a layer of experts; `more` are those of its `MoeSpec` that are not usual."""
    per_token = config.size(chosen_key, MAX_EXPERTS)
    experts = expert_count(config) if count_key is None else config.size(count_key, MAX_EXPERTS)
    if per_token > experts:
        raise UnsupportedModel(
            f"{config.path}: {chosen_key} is {per_token}, but there are {experts} experts"
        )
    neurons = config.size(width_key, MAX_WIDTH)
    return {
        "d_ffn": experts * neurons,
        "neurons_per_bundle": neurons,
        "experts": MoeSpec(experts, per_token, neurons, renormalise=renormalise, **more),
    }


_EVERYWHERE = "only models with experts in all layers are supported"


def _qwen3_moe_features(config: Config) -> dict[str, Any]:
    """Features of a Qwen3 with experts (arXiv 2505.09388)."""
    if config.get("mlp_only_layers"):
        raise config.refuse("mlp_only_layers", _EVERYWHERE)
    if config.size("decoder_sparse_step", MAX_WIDTH, default=1) != 1:
        raise config.refuse("decoder_sparse_step", _EVERYWHERE)
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
    experts=(
        separate(f"{LAYER}.mlp", "gate_proj", "up_proj", "down_proj"),
        fused_in(f"{LAYER}.mlp"),
        stacked_in(f"{LAYER}.mlp", "switch_mlp"),
    ),
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
    experts=(separate(f"{LAYER}.block_sparse_moe", "w1", "w3", "w2"), fused_in(f"{LAYER}.mlp")),
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
        fused(
            f"{_GRANITE_BLOCK}.router.layer.weight",
            f"{_GRANITE_BLOCK}.input_linear.weight",
            f"{_GRANITE_BLOCK}.output_linear.weight",
        ),
        replace(fused_in(_GRANITE_BLOCK), router=f"{_GRANITE_BLOCK}.router.weight"),
    ),
)


def _mellum_features(config: Config) -> dict[str, Any]:
    """Features of a Mellum 2 (JetBrains, 2026): positions of their own where attention slides."""
    kinds = config.get("mlp_layer_types")
    if kinds is not None and (not isinstance(kinds, list) or set(kinds) != {"sparse"}):
        raise config.refuse("mlp_layer_types", _EVERYWHERE)
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


def _gpt_oss_features(config: Config) -> dict[str, Any]:
    """Features of a GPT-OSS (OpenAI, 2025, arXiv 2508.10925)."""
    # Another name of num_experts_per_tok, and of what rope_scaling says.
    config.asked.update(("experts_per_token", "initial_context_length"))
    experts = _experts(
        config,
        "intermediate_size",
        renormalise=True,
        router_bias=True,
        bias=True,
        gate_limit=config.number("swiglu_limit", 7.0),
        gate_slope=config.number("swiglu_alpha", 1.702),
        up_offset=1.0,
    )
    features = rms_features(
        config, eps=1e-5, d_ffn=experts["d_ffn"], head_dim=64, max_positions=131072
    )
    size, layers = window_size(config, 128), features["n_layers"]
    if config.get("layer_types") is None:
        windows = tuple(size or 0 if layer % 2 == 0 else 0 for layer in range(layers))
    else:
        windows = windows_by_layer(config, layers, size)
    bias = config.flag("attention_bias", True)
    return (
        features
        | experts
        | {
            "attention_bias": bias,
            "attention_output_bias": bias,
            "attention_sinks": True,
            "attention_windows": windows,
        }
    )


_GPT_OSS_STACKS = f"{LAYER}.mlp.experts"

GPT_OSS = replace(
    QWEN3_MOE,
    model_type="gpt_oss",
    features=_gpt_oss_features,
    rows=(
        *QWEN3_MOE.rows,
        Row("layers.{i}.attn.sinks", f"{LAYER}.self_attn.sinks", ("n_heads",)),
    ),
    experts=(
        alternating(
            f"{LAYER}.mlp.router",
            f"{_GPT_OSS_STACKS}.gate_up_proj",
            f"{_GPT_OSS_STACKS}.down_proj",
        ),
        in_blocks(
            f"{LAYER}.mlp.router",
            f"{_GPT_OSS_STACKS}.gate_up_proj",
            f"{_GPT_OSS_STACKS}.down_proj",
        ),
        replace(
            separate(f"{LAYER}.mlp", "gate_proj", "up_proj", "down_proj", router="router"),
            router_bias=f"{LAYER}.mlp.router.bias",
        ),
    ),
    special_ids={"eos_token_id": 200002},
)


def _smallthinker_features(config: Config) -> dict[str, Any]:
    """Features of a SmallThinker (Song et al. 2025, arXiv 2507.20984).

    Its router reads the block's input, so that experts can be read while attention computes.
    """
    softmax = config.flag("moe_primary_router_apply_softmax", False)
    # Weights are made of the chosen logits alone, whatever this says.
    config.asked.add("norm_topk_prob")
    experts = _experts(
        config,
        "moe_ffn_hidden_size",
        renormalise=True,
        chosen_key="moe_num_active_primary_experts",
        count_key="moe_num_primary_experts",
        score="softmax" if softmax else "sigmoid",
        router_input="block",
    )
    layers_with_experts = config.get("moe_layer_layout")
    if layers_with_experts is not None and set(layers_with_experts) != {1}:
        raise config.refuse("moe_layer_layout", _EVERYWHERE)
    if config.flag("moe_enable_early_router", True) is False:
        raise config.refuse("moe_enable_early_router", "only early routers are supported")
    if config.flag("moe_enable_secondary_experts", False):
        raise config.refuse("moe_enable_secondary_experts", "only one kind of expert is supported")
    features = rms_features(config, d_ffn=experts["d_ffn"], tied=True, max_positions=32768)
    layers = features["n_layers"]
    rotated = _layout(config, "rope_layout", layers, 1)
    sliding = _layout(config, "sliding_window_layout", layers, 0)
    size = config.size("sliding_window_size", MAX_POSITIONS, default=4096)
    windows = tuple(size * slides for slides in sliding)
    return (
        features
        | experts
        | {
            "attention_windows": windows if any(windows) else (),
            "unrotated_layers": tuple(at for at, flag in enumerate(rotated) if not flag),
        }
    )


def _layout(config: Config, key: str, layers: int, default: int) -> list[int]:
    """A list of 0 or 1 for each layer."""
    given = config.get(key)
    if given is None:
        return [default] * layers
    if not isinstance(given, list) or len(given) != layers or not set(given) <= {0, 1}:
        raise NotACheckpoint(f"{config.path}: {key} is not a list of {layers} times 0 or 1")
    return given


_SMALLTHINKER_BLOCK = f"{LAYER}.block_sparse_moe"

SMALLTHINKER = replace(
    QWEN3_MOE,
    model_type="smallthinker",
    features=_smallthinker_features,
    activation_default="relu",
    experts=(separate(_SMALLTHINKER_BLOCK, "gate", "up", "down", router="primary_router"),),
    special_ids={},
)


def _glm4_moe_features(config: Config) -> dict[str, Any]:
    """Features of a GLM-4.5 (Zeng et al. 2025, arXiv 2508.06471)."""
    neurons = config.size("moe_intermediate_size", MAX_WIDTH)
    dense = config.get("first_k_dense_replace")
    dense = 1 if dense is None else dense
    if type(dense) is not int or not 0 <= dense <= MAX_LAYERS:
        raise config.refuse("first_k_dense_replace", "expected a number of layers")
    width = config.size("intermediate_size", MAX_WIDTH)
    # What predicts several tokens at once is left out.
    config.asked.update(("num_nextn_predict_layers", "num_mtp_layers"))
    experts = _experts(
        config,
        "moe_intermediate_size",
        renormalise=config.flag("norm_topk_prob", True),
        count_key="n_routed_experts",
        score="sigmoid",
        choice_bias=True,
        groups=config.size("n_group", MAX_EXPERTS, default=1),
        groups_kept=config.size("topk_group", MAX_EXPERTS, default=1),
        sum_offset=1e-20,
        weight_scale=config.number("routed_scaling_factor", 1.0),
        shared_d_ffn=neurons * config.size("n_shared_experts", MAX_EXPERTS, default=1),
        dense_layers=dense,
        dense_d_ffn=width if dense else 0,
    )
    features = rms_features(
        config,
        eps=1e-5,
        d_ffn=experts["d_ffn"],
        max_positions=131072,
        share=0.5,
        partial=True,
    )
    windows = windows_alike(config, features["n_layers"], None)
    return (
        features
        | experts
        | {
            "attention_bias": config.flag("attention_bias", False),
            "qk_norm": config.flag("use_qk_norm", False),
            "attention_windows": windows,
        }
    )


def _gated_mlp(ours: str, theirs: str, rows: str) -> tuple[Row, ...]:
    """A feed-forward layer that stays in memory whole."""
    return tuple(
        Row(f"{ours}.{name}.weight", f"{theirs}.{name}_proj.weight", shape)
        for name, shape in (
            ("gate", (rows, "d_model")),
            ("up", (rows, "d_model")),
            ("down", ("d_model", rows)),
        )
    )


_CHOICE_BIAS = f"{LAYER}.mlp.gate.e_score_correction_bias"

GLM4_MOE = replace(
    QWEN3_MOE,
    model_type="glm4_moe",
    features=_glm4_moe_features,
    rows=(
        *QWEN3_MOE.rows,
        *_gated_mlp("layers.{i}.shared", f"{LAYER}.mlp.shared_experts", "shared_rows"),
        *_gated_mlp("layers.{i}.dense", f"{LAYER}.mlp", "dense_rows"),
    ),
    experts=tuple(replace(way, choice_bias=_CHOICE_BIAS) for way in QWEN3_MOE.experts),
    is_followed_by_others=True,
)

EXPERTS = (QWEN3_MOE, OLMOE, MIXTRAL, GRANITE_MOE, MELLUM, GPT_OSS, SMALLTHINKER, GLM4_MOE)
