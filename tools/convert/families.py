"""Families as data: what a checkpoint calls its tensors and its settings, and what we call them.

The only file that knows names of families. A tensor that no row names, or a row that finds no
tensor, is an error; what differs between families ends here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from flashllm.spec import MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH

from .config import Config


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor, or one of every layer where the names hold `{i}`.

    `shape` names sizes of the spec, as the source stores the tensor. The rows of a bundle follow
    each other in the order of the table; a transposed one is a matrix whose columns are the rows.
    """

    ours: str
    source: str
    shape: tuple[str, ...]
    place: Literal["resident", "bundle"] = "resident"
    transform: Literal["as is", "transpose"] = "as is"


@dataclass(frozen=True, slots=True)
class Family:
    """A model_type: its tensors, and how its configuration becomes features of a spec."""

    model_type: str
    features: Callable[[Config], dict[str, Any]]
    rows: tuple[Row, ...]
    prefix: str = ""
    """What names of tensors may or may not start with."""
    tied_copies: dict[str, str] = field(default_factory=dict)
    """Where the head is tied: a name that may occur too -> the tensor that it must equal."""
    ignored: tuple[re.Pattern[str], ...] = ()
    special_ids: dict[str, int] = field(default_factory=dict)
    """Ids that hold when no file of the checkpoint gives them."""


def _linear(ours: str, source: str, out: str, into: str) -> tuple[Row, Row]:
    """Weight and bias of a projection that stays in memory."""
    return (
        Row(f"{ours}.weight", f"{source}.weight", (out, into)),
        Row(f"{ours}.bias", f"{source}.bias", (out,)),
    )


def _norm(ours: str, source: str) -> tuple[Row, Row]:
    """Weight and bias of a layer norm."""
    return (
        Row(f"{ours}.weight", f"{source}.weight", ("d_model",)),
        Row(f"{ours}.bias", f"{source}.bias", ("d_model",)),
    )


def _opt_features(config: Config) -> dict[str, Any]:
    """Features of an OPT model (Zhang et al. 2022, arXiv 2205.01068); defaults as transformers'."""
    width = config.size("hidden_size", MAX_WIDTH)
    heads = config.size("num_attention_heads", MAX_WIDTH)
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
        "activation": config.choice("activation_function", ("relu",), default="relu"),
    }


_OPT_LAYER = "decoder.layers.{i}"

OPT = Family(
    model_type="opt",
    features=_opt_features,
    prefix="model.",
    rows=(
        Row("embed.weight", "decoder.embed_tokens.weight", ("vocab_size", "embed_dim")),
        Row("embed.positions", "decoder.embed_positions.weight", ("position_rows", "d_model")),
        Row("embed.project_in.weight", "decoder.project_in.weight", ("d_model", "embed_dim")),
        Row("head.project_out.weight", "decoder.project_out.weight", ("embed_dim", "d_model")),
        Row("head.weight", "lm_head.weight", ("vocab_size", "embed_dim")),
        *_norm("final_norm", "decoder.final_layer_norm"),
        *_linear("layers.{i}.attn.q", f"{_OPT_LAYER}.self_attn.q_proj", "d_model", "d_model"),
        *_linear("layers.{i}.attn.k", f"{_OPT_LAYER}.self_attn.k_proj", "d_model", "d_model"),
        *_linear("layers.{i}.attn.v", f"{_OPT_LAYER}.self_attn.v_proj", "d_model", "d_model"),
        *_linear("layers.{i}.attn.o", f"{_OPT_LAYER}.self_attn.out_proj", "d_model", "d_model"),
        *_norm("layers.{i}.attn_norm", f"{_OPT_LAYER}.self_attn_layer_norm"),
        *_norm("layers.{i}.ffn_norm", f"{_OPT_LAYER}.final_layer_norm"),
        Row("layers.{i}.ffn.up.bias", f"{_OPT_LAYER}.fc1.bias", ("d_ffn",)),
        Row("layers.{i}.ffn.down.bias", f"{_OPT_LAYER}.fc2.bias", ("d_model",)),
        Row("layers.{i}.ffn.up", f"{_OPT_LAYER}.fc1.weight", ("d_ffn", "d_model"), "bundle"),
        Row(
            "layers.{i}.ffn.down",
            f"{_OPT_LAYER}.fc2.weight",
            ("d_model", "d_ffn"),
            "bundle",
            "transpose",
        ),
    ),
    tied_copies={"lm_head.weight": "decoder.embed_tokens.weight"},
    # A buffer that the first uploads still carry.
    ignored=(re.compile(r"decoder\.version"),),
    special_ids={"bos_token_id": 2, "eos_token_id": 2},
)

FAMILIES = {family.model_type: family for family in (OPT,)}


def family_of(config: Config) -> Family:
    """The family of a configuration; `UnsupportedModel` for another one."""
    return FAMILIES[config.choice("model_type", tuple(FAMILIES), default="")]
