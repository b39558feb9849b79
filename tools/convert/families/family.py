"""What a family is: the rows of its table of tensors, and how its settings become features."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.spec import MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, ModelSpec

from .activation import NAMES
from .config import Config
from .rotary import ALL_KINDS, rope_of
from .transforms import Part, Transform

ROTARY_BUFFERS = re.compile(r".*rotary_emb\.inv_freq")
"""Computed, not learned; older versions of transformers saved them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of ours, or one of every layer where the names hold `{i}`.

    `shape` names sizes of the spec, as the source stores the whole tensor, and `part` the rows of
    it that are ours. `bundle` rows go to flash, a `gate` there or into memory, as the spec has it.
    """

    ours: str
    source: str
    shape: tuple[str, ...]
    place: Literal["resident", "bundle", "gate"] = "resident"
    transform: Transform = "as is"
    part: Part = "all"
    when: Callable[[ModelSpec], bool] | None = None
    """Whether a model of this spec has the row at all."""


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """Where gate, up or down of a layer's experts lies, by a name with `{i}` for the layer.

    Each expert has a tensor of its own where the name holds `{e}`; else they are stacked.
    """

    name: str
    share: Literal["all", "first half", "second half", "even", "odd"] = "all"
    """Which rows of the tensor, where gate and up share it."""
    turned: bool = False
    """Whether it is stored as [in, out], so that our rows are its columns."""
    bias: str = ""


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """One way in which checkpoints hold a layer's experts, by names with `{i}` for the layer."""

    router: str
    gate: ExpertMatrix
    up: ExpertMatrix
    down: ExpertMatrix
    router_bias: str = ""
    choice_bias: str = ""

    @property
    def matrices(self) -> tuple[ExpertMatrix, ...]:
        """In the order of a bundle."""
        return self.gate, self.up, self.down


@dataclass(frozen=True, slots=True)
class Family:
    """A model_type: its tensors, and how its configuration becomes features of a spec.

    `features` gives all but what this table says of the activation and of the gate.
    """

    model_type: str
    features: Callable[[Config], dict[str, Any]]
    rows: tuple[Row, ...]
    gated: bool = False
    activation_key: str = "hidden_act"
    activations: Mapping[str, str] = field(default_factory=lambda: NAMES)
    activation_default: str = "silu"
    prefix: str = "model."
    """What names of tensors may or may not start with."""
    tied_copies: dict[str, str] = field(
        default_factory=lambda: {"lm_head.weight": "embed_tokens.weight"}
    )
    """Where the head is tied: a name that may occur too -> the tensor that it must equal."""
    ignored: tuple[re.Pattern[str], ...] = (ROTARY_BUFFERS,)
    is_followed_by_others: bool = False
    """Whether layers may follow the last one, which predict further tokens and are left out."""
    experts: tuple[ExpertNames, ...] = ()
    """Ways in which its experts may be stored; empty where a layer is whole."""
    special_ids: dict[str, int] = field(default_factory=dict)
    """Ids that hold when no file of the checkpoint gives them."""
    predictor: tuple[str, str] | None = None
    """Tensors of a layer's predictor that lie in the checkpoint: fc1, fc2; relu between them, fed
    with what the norm before the feed-forward layer is fed with, active above 0
    (`modeling_bamboo.py` beside the weights of TurboSparse)."""


def linear(ours: str, source: str, out: str, into: str) -> tuple[Row, Row]:
    """Weight and bias of a projection that stays in memory."""
    return (
        Row(f"{ours}.weight", f"{source}.weight", (out, into)),
        Row(f"{ours}.bias", f"{source}.bias", (out,)),
    )


def norm(ours: str, source: str, transform: Transform = "as is") -> tuple[Row, Row]:
    """Weight and bias of a norm; the transform is the weight's."""
    return (
        Row(f"{ours}.weight", f"{source}.weight", ("d_model",), transform=transform),
        Row(f"{ours}.bias", f"{source}.bias", ("d_model",)),
    )


def fused_qkv(source: str, layout: Literal["groups", "stack"]) -> tuple[Row, ...]:
    """Query, key and value from one projection: group after group of heads, or one stack each."""
    parts: dict[str, dict[str, Part]] = {
        "groups": {"q": "q of groups", "k": "k of groups", "v": "v of groups"},
        "stack": {"q": "q of stack", "k": "k of stack", "v": "v of stack"},
    }
    rows = []
    for name, part in parts[layout].items():
        ours = f"layers.{{i}}.attn.{name}"
        rows.append(Row(f"{ours}.weight", f"{source}.weight", ("qkv_rows", "d_model"), part=part))
        rows.append(Row(f"{ours}.bias", f"{source}.bias", ("qkv_rows",), part=part))
    return tuple(rows)


def neuron(up: str, down: str, gate: str = "") -> tuple[Row, ...]:
    """A feed-forward layer: biases stay in memory, up and down go to flash, a gate to either."""
    ours = "layers.{i}.ffn"
    rows = [
        Row(f"{ours}.up.bias", f"{up}.bias", ("d_ffn",)),
        Row(f"{ours}.down.bias", f"{down}.bias", ("d_model",)),
        Row(f"{ours}.up", f"{up}.weight", ("d_ffn", "d_model"), "bundle"),
        Row(f"{ours}.down", f"{down}.weight", ("d_model", "d_ffn"), "bundle", "transpose"),
    ]
    if gate:
        rows.append(Row(f"{ours}.gate.bias", f"{gate}.bias", ("d_ffn",)))
        rows.append(Row(f"{ours}.gate.weight", f"{gate}.weight", ("d_ffn", "d_model"), "gate"))
    return tuple(rows)


def rotary_features(
    config: Config,
    *,
    layers_key: str = "num_hidden_layers",
    heads_key: str = "num_attention_heads",
    kv_heads: int | None = None,
    kv_key: str = "num_key_value_heads",
    head_dim: int | None = None,
    d_ffn: int | None = None,
    max_positions: int = 2048,
    tied: bool = False,
    share: float = 1.0,
    partial: bool = False,
    kinds: tuple[str, ...] = ALL_KINDS,
) -> dict[str, Any]:
    """Sizes and positions that are read alike in all families with rotary positions.

    What is given is the family's own default, or already known. No norm is described, and no bias.
    """
    width = config.size("hidden_size", MAX_WIDTH)
    heads = config.size(heads_key, MAX_WIDTH)
    dims = config.size("head_dim", MAX_WIDTH, default=head_dim or max(1, width // heads))
    if config.get("head_dim") is None and head_dim is None and width % heads:
        raise config.refuse(heads_key, f"it does not divide hidden_size, {width}")
    positions = config.size("max_position_embeddings", MAX_POSITIONS, default=max_positions)
    if kv_heads is None:
        kv_heads = config.size(kv_key, MAX_WIDTH, default=heads)
    if heads % kv_heads:
        raise config.refuse(kv_key, f"{kv_heads} does not divide {heads}, which {heads_key} is")
    return {
        "n_layers": config.size(layers_key, MAX_LAYERS),
        "d_model": width,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "head_dim": dims,
        "d_ffn": config.size("intermediate_size", MAX_WIDTH) if d_ffn is None else d_ffn,
        "vocab_size": config.size("vocab_size", MAX_VOCAB),
        "embed_dim": width,
        "max_positions": positions,
        "position_offset": 0,
        "norm_placement": "pre",
        "norm_affine": True,
        "final_norm": True,
        "attention_bias": False,
        "ffn_bias": False,
        "tied_head": config.flag("tie_word_embeddings", tied),
        "positions": "rope",
        "rope": rope_of(config, dims, positions, share=share, partial=partial, kinds=kinds),
    }


def window_size(config: Config, default: int | None) -> int | None:
    """Tokens of the sliding window; None where there is none."""
    if config.values.get("sliding_window", default) is None:
        config.asked.add("sliding_window")
        return None
    return config.size("sliding_window", MAX_POSITIONS, default=default)


def windows_alike(config: Config, n_layers: int, size: int | None) -> tuple[int, ...]:
    """One window for all layers; `layer_types`, where given, must say the same."""
    kind = "full_attention" if size is None else "sliding_attention"
    if (types := config.get("layer_types")) is not None and types != [kind] * n_layers:
        raise UnsupportedModel(
            f"{config.path}: layer_types says that layers differ; in models of this model_type "
            "sliding_window holds for all"
        )
    return () if size is None else (size,) * n_layers


def windows_by_layer(config: Config, n_layers: int, size: int | None) -> tuple[int, ...]:
    """A window for the layers that `layer_types` names, else for those from max_window_layers."""
    first = config.get("max_window_layers")
    if first is not None and (type(first) is not int or first < 0):
        raise NotACheckpoint(f"{config.path}: max_window_layers is {first!r}; expected 0 or more")
    types = config.get("layer_types")
    if types is None:
        full = n_layers if size is None else 28 if first is None else first
        types = ["full_attention" if i < full else "sliding_attention" for i in range(n_layers)]
    kinds = {"full_attention": 0, "sliding_attention": size}
    if not isinstance(types, list) or len(types) != n_layers:
        raise NotACheckpoint(f"{config.path}: layer_types is not a list of {n_layers} names")
    for kind in types:
        if not isinstance(kind, str) or kinds.get(kind) is None:
            raise UnsupportedModel(
                f"{config.path}: layer_types has {kind!r}; supported: full_attention, and "
                "sliding_attention where use_sliding_window and sliding_window are set"
            )
    windows = tuple(kinds[kind] or 0 for kind in types)
    return windows if any(windows) else ()
