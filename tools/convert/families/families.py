"""Families as data: a checkpoint's names of tensors and settings, and ours.

Names of families occur only in this file and in those that it takes its tables from. A tensor that
no row names, or a row that finds no tensor, is an error. The rest of the program knows no
differences between families.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

from flashllm.spec import MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, ModelSpec

from .config import Config
from .experts import EXPERTS
from .family import ROTARY_BUFFERS, Family, Row, fused_qkv, linear, neuron, norm, rotary_features
from .gated import GATED
from .ungated import UNGATED


def _opt_features(config: Config) -> dict[str, Any]:
    """Features of an OPT model (Zhang et al. 2022, arXiv 2205.01068); defaults as transformers'."""
    width = config.size("hidden_size", MAX_WIDTH)
    heads = config.size("num_attention_heads", MAX_WIDTH)
    if width % heads:
        raise config.refuse("num_attention_heads", f"it does not divide hidden_size, {width}")
    pre_norm = config.flag("do_layer_norm_before", True)
    bias = config.flag("enable_bias", True)
    return {
        "n_layers": config.size("num_hidden_layers", MAX_LAYERS),
        "d_model": width,
        "n_heads": heads,
        "n_kv_heads": heads,
        "head_dim": width // heads,
        "d_ffn": config.size("ffn_dim", MAX_WIDTH),
        "vocab_size": config.size("vocab_size", MAX_VOCAB),
        "embed_dim": config.size("word_embed_proj_dim", MAX_WIDTH, default=width),
        "max_positions": config.size("max_position_embeddings", MAX_POSITIONS),
        "position_offset": 2,
        "norm_placement": "pre" if pre_norm else "post",
        "norm_affine": config.flag("layer_norm_elementwise_affine", True),
        "norm_eps": 1e-5,
        "final_norm": pre_norm and not config.flag("_remove_final_layer_norm", False),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "ffn_bias": bias,
        "tied_head": config.flag("tie_word_embeddings", True),
    }


_OPT_LAYER = "decoder.layers.{i}"

OPT = Family(
    model_type="opt",
    features=_opt_features,
    activation_key="activation_function",
    activation_default="relu",
    rows=(
        Row("embed.weight", "decoder.embed_tokens.weight", ("vocab_size", "embed_dim")),
        Row("embed.positions", "decoder.embed_positions.weight", ("position_rows", "d_model")),
        Row("embed.project_in.weight", "decoder.project_in.weight", ("d_model", "embed_dim")),
        Row("head.project_out.weight", "decoder.project_out.weight", ("embed_dim", "d_model")),
        Row("head.weight", "lm_head.weight", ("vocab_size", "embed_dim")),
        *norm("final_norm", "decoder.final_layer_norm"),
        *linear("layers.{i}.attn.q", f"{_OPT_LAYER}.self_attn.q_proj", "d_model", "d_model"),
        *linear("layers.{i}.attn.k", f"{_OPT_LAYER}.self_attn.k_proj", "d_model", "d_model"),
        *linear("layers.{i}.attn.v", f"{_OPT_LAYER}.self_attn.v_proj", "d_model", "d_model"),
        *linear("layers.{i}.attn.o", f"{_OPT_LAYER}.self_attn.out_proj", "d_model", "d_model"),
        *norm("layers.{i}.attn_norm", f"{_OPT_LAYER}.self_attn_layer_norm"),
        *norm("layers.{i}.ffn_norm", f"{_OPT_LAYER}.final_layer_norm"),
        *neuron(f"{_OPT_LAYER}.fc1", f"{_OPT_LAYER}.fc2"),
    ),
    tied_copies={"lm_head.weight": "decoder.embed_tokens.weight"},
    # A buffer that the first uploads still carry.
    ignored=(re.compile(r"decoder\.version"),),
    special_ids={"bos_token_id": 2, "eos_token_id": 2},
)


def _falcon_features(config: Config, *, always_new: bool = False) -> dict[str, Any]:
    """Features of a Falcon (Almazrouei et al. 2023, arXiv 2311.16867), by new or by old keys."""
    for key in ("alibi", "apply_residual_connection_post_layernorm"):
        if config.flag(key, False):
            raise config.refuse(key, "only models without it are supported")
    new = config.flag("new_decoder_architecture", always_new)
    # What the older architecture says with the first of these, the newer one ignores.
    multi_query, parallel = config.flag("multi_query", True), config.flag("parallel_attn", True)
    if new and not parallel:
        raise config.refuse("parallel_attn", "with new_decoder_architecture it must be true")
    heads_key = config.first("num_attention_heads", "n_head")
    kv_key = config.first("num_kv_heads", "n_head_kv")
    heads = config.size(heads_key, MAX_WIDTH)
    kv_heads = config.size(kv_key, MAX_WIDTH, default=heads)
    norms = config.size("num_ln_in_parallel_attn", 2, default=2 if new else 1)
    if norms == 2 and not new:
        raise config.refuse("num_ln_in_parallel_attn", "the older architecture has one norm")
    width = config.size(config.first("hidden_size", "n_embed"), MAX_WIDTH)
    bias = config.flag("bias", False)
    return rotary_features(
        config,
        layers_key=config.first("num_hidden_layers", "n_layer"),
        heads_key=heads_key,
        kv_heads=kv_heads if new else 1 if multi_query else heads,
        kv_key=kv_key,
        d_ffn=config.size("ffn_hidden_size", MAX_WIDTH, default=4 * width),
        tied=True,
    ) | {
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "ffn_bias": bias,
        "block": "parallel" if new or parallel else "sequential",
        "shared_norm": (new or parallel) and norms == 1,
    }


def _two_norms(spec: ModelSpec) -> bool:
    return spec.block == "parallel" and not spec.shared_norm


def _one_norm(spec: ModelSpec) -> bool:
    return not _two_norms(spec)


def _falcon_norms() -> tuple[Row, ...]:
    """The norms of a layer, whose names depend on how many there are and on the order."""
    layer = "h.{i}"
    return tuple(
        replace(row, when=when)
        for ours, theirs, when in (
            ("attn_norm", "input_layernorm", _one_norm),
            ("attn_norm", "ln_attn", _two_norms),
            ("ffn_norm", "post_attention_layernorm", _one_norm),
            ("ffn_norm", "ln_mlp", _two_norms),
        )
        for row in norm(f"layers.{{i}}.{ours}", f"{layer}.{theirs}")
    )


FALCON = Family(
    model_type="falcon",
    features=_falcon_features,
    activation_key="activation",
    activation_default="gelu",
    prefix="transformer.",
    rows=(
        Row("embed.weight", "word_embeddings.weight", ("vocab_size", "embed_dim")),
        Row("head.weight", "lm_head.weight", ("vocab_size", "embed_dim")),
        *norm("final_norm", "ln_f"),
        # One layout for all three: with one group where keys are shared by all heads, and with as
        # many as there are heads where each has its own.
        *fused_qkv("h.{i}.self_attention.query_key_value", "groups"),
        *linear("layers.{i}.attn.o", "h.{i}.self_attention.dense", "d_model", "q_rows"),
        *_falcon_norms(),
        *neuron("h.{i}.mlp.dense_h_to_4h", "h.{i}.mlp.dense_4h_to_h"),
    ),
    tied_copies={"lm_head.weight": "word_embeddings.weight"},
    ignored=(ROTARY_BUFFERS, re.compile(r"h\.\d+\.self_attention\.maybe_rotary\.inv_freq")),
    special_ids={"bos_token_id": 11, "eos_token_id": 11},
)
# What the first uploads call themselves; the larger ones are of the newer architecture and say so
# by their name alone.
OLD_FALCON = replace(FALCON, model_type="RefinedWebModel")
OLD_FALCON_LARGE = replace(
    FALCON, model_type="RefinedWeb", features=partial(_falcon_features, always_new=True)
)

FAMILIES = {
    family.model_type: family
    for family in (OPT, FALCON, OLD_FALCON, OLD_FALCON_LARGE, *GATED, *UNGATED, *EXPERTS)
}


def family_of(config: Config) -> Family:
    """The family of a configuration; `UnsupportedModel` for another one."""
    return FAMILIES[config.choice("model_type", tuple(FAMILIES), default="")]
