"""Architectures of GGUF as data: keys of the metadata and names of tensors, and what they are here.

The other side of each is what a checkpoint of transformers says and holds, so that families need to
know nothing of GGUF. A key that no table names is given on under its own name, and refused where it
sounds like mathematics. Sources: the keys and names of the package `gguf` (constants.py), and what
llama.cpp's convert_hf_to_gguf.py does to the weights of each architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class WindowedLayers:
    """Where the metadata has the key `window`: lists that are 0 for each `period`-th layer.

    The first layer is one of those; all others have 1 in the lists, which are keys of config.json.
    """

    window: str
    lists: tuple[str, ...]
    period: int


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What `general.architecture` stands for.

    `settings` are keys of the metadata, without the architecture's name in front, and the keys of
    config.json that they are; `modules` names of tensors without `.weight` or `.bias`, with `{i}`
    for the layer and, on our side, `{e}` for the expert where all experts of a layer are stacked.
    """

    model_type: str
    settings: Mapping[str, str]
    modules: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    """What config.json says and the metadata does not, since it holds for the architecture."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the metadata that may only have this value, which holds anyway."""
    paired: tuple[str, ...] = ()
    """Modules whose rows lie in pairs in each head, for another order of rotary positions."""
    nameless: tuple[str, ...] = ()
    """Modules that are a single tensor, whose name on our side is theirs alone."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """What scaled rotary positions are besides, where the metadata cannot say it."""
    biases: Mapping[str, str] = field(default_factory=dict)
    """A tensor -> the flag of config.json that is true where it is there."""
    with_experts: GgufArchitecture | None = None
    """What it is instead where its metadata says that there are experts."""
    meanings: Mapping[str, tuple[str, Mapping[Any, Any]]] = field(default_factory=dict)
    """A key of the metadata -> the key of config.json that it is, by values of either."""
    following: str = ""
    """The key of how many of the blocks come after the model's layers, and are left out."""
    windowed: WindowedLayers | None = None
    """Which layers have a window, where the metadata says only that some have."""


_SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_EXPERT_SETTINGS = {
    **_SETTINGS,
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
}
_SOFTMAX, _SIGMOID = 1, 2
_EXPERTS_IMPLIED = {"expert_gating_func": _SOFTMAX, "expert_weights_scale": 1.0}

_LAYER = "model.layers.{i}"
_TRUNK = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
    "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{i}.attn_output": f"{_LAYER}.self_attn.o_proj",
}
_SEPARATE = {
    **_TRUNK,
    "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
    "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
    "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
    "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
}
_DENSE = {
    **_SEPARATE,
    "blk.{i}.ffn_gate": f"{_LAYER}.mlp.gate_proj",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.up_proj",
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.down_proj",
}


def _experts(block: str, gate: str, up: str, down: str) -> dict[str, str]:
    """A router, and experts in one tensor for each matrix."""
    return {
        **_SEPARATE,
        "blk.{i}.ffn_gate_inp": f"{_LAYER}.{block}.gate",
        "blk.{i}.ffn_gate_exps": f"{_LAYER}.{block}.experts.{{e}}.{gate}",
        "blk.{i}.ffn_up_exps": f"{_LAYER}.{block}.experts.{{e}}.{up}",
        "blk.{i}.ffn_down_exps": f"{_LAYER}.{block}.experts.{{e}}.{down}",
    }


_MLP_EXPERTS = _experts("mlp", "gate_proj", "up_proj", "down_proj")
_QUERIES_AND_KEYS = ("blk.{i}.attn_q", "blk.{i}.attn_k")

_MIXTRAL = GgufArchitecture(
    "mixtral",
    _EXPERT_SETTINGS,
    _experts("block_sparse_moe", "w1", "w3", "w2"),
    implied={**_EXPERTS_IMPLIED, "expert_weights_norm": True},
    paired=_QUERIES_AND_KEYS,
)
_LLAMA = GgufArchitecture(
    "llama",
    _SETTINGS,
    _DENSE,
    paired=_QUERIES_AND_KEYS,
    biases={"blk.0.attn_q.bias": "attention_bias", "blk.0.ffn_up.bias": "mlp_bias"},
    with_experts=_MIXTRAL,
)
_QWEN2 = GgufArchitecture("qwen2", _SETTINGS, _DENSE)
_QWEN3 = GgufArchitecture("qwen3", _SETTINGS, _DENSE)
_QWEN3_MOE = GgufArchitecture(
    "qwen3_moe",
    _EXPERT_SETTINGS,
    _MLP_EXPERTS,
    # What a config.json may say otherwise, llama.cpp computes so for all models of these.
    constants={"norm_topk_prob": True},
    implied=_EXPERTS_IMPLIED,
    biases={"blk.0.attn_q.bias": "attention_bias"},
)
_OLMOE = replace(_QWEN3_MOE, model_type="olmoe", constants={"norm_topk_prob": False}, biases={})
_PHI3 = GgufArchitecture(
    "phi3",
    {**_SETTINGS, "attention.sliding_window": "sliding_window"},
    {
        **_TRUNK,
        "blk.{i}.attn_qkv": f"{_LAYER}.self_attn.qkv_proj",
        "blk.{i}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
        "blk.{i}.ffn_down": f"{_LAYER}.mlp.down_proj",
    },
)

_GPT_OSS = GgufArchitecture(
    "gpt_oss",
    {
        **_EXPERT_SETTINGS,
        "expert_count": "num_local_experts",
        "expert_feed_forward_length": "intermediate_size",
        "attention.sliding_window": "sliding_window",
    },
    {
        **{module: theirs for module, theirs in _TRUNK.items() if module != "blk.{i}.ffn_norm"},
        "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
        "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
        "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
        "blk.{i}.attn_sinks": f"{_LAYER}.self_attn.sinks",
        "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{i}.ffn_gate_inp": f"{_LAYER}.mlp.router",
        "blk.{i}.ffn_gate_exps": f"{_LAYER}.mlp.experts.{{e}}.gate_proj",
        "blk.{i}.ffn_up_exps": f"{_LAYER}.mlp.experts.{{e}}.up_proj",
        "blk.{i}.ffn_down_exps": f"{_LAYER}.mlp.experts.{{e}}.down_proj",
    },
    nameless=("blk.{i}.attn_sinks",),
    scaling={"truncate": False},
)

_GLM4_MOE = GgufArchitecture(
    "glm4_moe",
    {
        **_EXPERT_SETTINGS,
        "expert_count": "n_routed_experts",
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "leading_dense_block_count": "first_k_dense_replace",
        "nextn_predict_layers": "num_nextn_predict_layers",
    },
    {
        **{module: theirs for module, theirs in _DENSE.items() if module != "blk.{i}.ffn_norm"},
        **{
            module: theirs
            for module, theirs in _MLP_EXPERTS.items()
            if module.startswith("blk.{i}.ffn_gate_inp") or module.endswith("_exps")
        },
        "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{i}.exp_probs_b": f"{_LAYER}.mlp.gate.e_score_correction_bias",
        "blk.{i}.ffn_gate_shexp": f"{_LAYER}.mlp.shared_experts.gate_proj",
        "blk.{i}.ffn_up_shexp": f"{_LAYER}.mlp.shared_experts.up_proj",
        "blk.{i}.ffn_down_shexp": f"{_LAYER}.mlp.shared_experts.down_proj",
    },
    # What llama.cpp takes where the metadata says nothing; config.json would mean something else.
    constants={
        "norm_topk_prob": False,
        "partial_rotary_factor": 1.0,
        "first_k_dense_replace": 0,
    },
    implied={"expert_gating_func": _SIGMOID},
    nameless=("blk.{i}.exp_probs_b",),
    biases={
        "blk.0.attn_q.bias": "attention_bias",
        "blk.0.attn_q_norm.weight": "use_qk_norm",
    },
    following="nextn_predict_layers",
)

_SMALLTHINKER = GgufArchitecture(
    "smallthinker",
    {
        **_SETTINGS,
        "expert_count": "moe_num_primary_experts",
        "expert_used_count": "moe_num_active_primary_experts",
        "expert_feed_forward_length": "moe_ffn_hidden_size",
        "attention.sliding_window": "sliding_window_size",
    },
    {
        **_experts("block_sparse_moe", "gate", "up", "down"),
        "blk.{i}.ffn_gate_inp": f"{_LAYER}.block_sparse_moe.primary_router",
    },
    implied={"expert_weights_scale": 1.0, "attention.sliding_window_pattern": 4},
    meanings={
        "expert_gating_func": (
            "moe_primary_router_apply_softmax",
            {_SOFTMAX: True, _SIGMOID: False},
        )
    },
    windowed=WindowedLayers(
        "attention.sliding_window", ("sliding_window_layout", "rope_layout"), period=4
    ),
)

_ARCEE = GgufArchitecture(
    "arcee",
    _SETTINGS,
    {module: theirs for module, theirs in _DENSE.items() if module != "blk.{i}.ffn_gate"},
    paired=_QUERIES_AND_KEYS,
)

ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "olmoe": _OLMOE,
    "phi3": _PHI3,
    "gpt-oss": _GPT_OSS,
    "glm4moe": _GLM4_MOE,
    "smallthinker": _SMALLTHINKER,
    "arcee": _ARCEE,
}
"""By `general.architecture`."""
