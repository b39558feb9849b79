"""Random configurations of all families: each gives a spec, or an error that names its key."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from flashllm.convert.families.config import Config
from flashllm.convert.families.families import FAMILIES
from flashllm.convert.families.spec_from_config import describe_config

from flashllm.errors import ModelError
from flashllm.spec import ModelSpec

CONFIGS_PER_FAMILY = 400
USUAL_SHARE = 0.6
"""How often a key has the first of its values."""
COMMON: dict[str, list[Any]] = {
    "num_hidden_layers": [1, 2, 3],
    "hidden_size": [8, 12, 16, 24, 30, 36],
    "num_attention_heads": [1, 2, 3, 4, 6],
    "num_key_value_heads": [None, 1, 2, 3, 4],
    "head_dim": [None, None, 4, 5, 8, 9],
    "intermediate_size": [8, 20],
    "vocab_size": [40],
    "max_position_embeddings": [64, 128],
    "tie_word_embeddings": [True, False],
    "partial_rotary_factor": [None, None, 0.25, 0.3, 0.5, 1.0],
    "rope_theta": [None, 10000.0, 1.0, 1e-10],
    "rms_norm_eps": [None, 1e-6, 1e-12, 1.0],
    "rope_scaling": [
        None,
        None,
        {"rope_type": "linear", "factor": 2.0},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0},
        {"rope_type": "linear", "factor": 1e-10},
        {"rope_type": "linear"},
    ],
}
OF_FAMILIES: dict[str, dict[str, list[Any]]] = {
    "opt": {
        key: [None] for key in COMMON if "ro" in key or key.startswith(("head", "num_key", "rms"))
    }
    | {
        "ffn_dim": [20],
        "word_embed_proj_dim": [None, 8],
        "do_layer_norm_before": [True, False],
        "activation_function": ["relu", "gelu", "tanh"],
    },
    "falcon": {
        "new_decoder_architecture": [True, False],
        "parallel_attn": [True, False],
        "multi_query": [True, False],
        "num_kv_heads": [None, 1, 2, 3],
        "num_ln_in_parallel_attn": [None, 1, 2],
        "layer_norm_epsilon": [None, 1e-5, 2.0],
        "alibi": [False, False, True],
        "bias": [True, False],
    },
    "minicpm": {
        "scale_emb": [12, 1e-10, 1e7],
        "scale_depth": [1.4, 1e-9, 1e7],
        "dim_model_base": [8, 1e-8, 1e8],
    },
    "phi": {"qk_layernorm": [False, False, True], "layer_norm_eps": [None, 1e-5, 2.0]},
    "nemotron": {"norm_eps": [None, 1e-5, 2.0], "mlp_bias": [True, False]},
    "bamboo": {"hidden_act": ["relu", "silu"], "sliding_window": [None, 16]},
    "mistral": {"sliding_window": [None, 16], "layer_types": [None, ["full_attention"]]},
    "qwen2": {
        "use_sliding_window": [True, False],
        "sliding_window": [None, 16],
        "max_window_layers": [None, 1, -1],
        "layer_types": [None, ["full_attention"], ["chunked_attention"] * 2],
    },
}
OF_FAMILIES["qwen3_moe"] = {
    "num_experts": [8, 8, 0, 2, 1 << 20],
    "num_local_experts": [None, 8, 4],
    "num_experts_per_tok": [2, 2, 9, 0],
    "moe_intermediate_size": [16, 16, 0, "16"],
    "norm_topk_prob": [True, False, None, 1],
    "mlp_only_layers": [None, [], [1]],
    "decoder_sparse_step": [None, 1, 2],
    "use_sliding_window": [False, True],
    "sliding_window": [None, 16],
}
OF_FAMILIES["olmoe"] = {
    name: OF_FAMILIES["qwen3_moe"][name]
    for name in ("num_experts", "num_experts_per_tok", "norm_topk_prob")
} | {"clip_qkv": [None, None, 8.0]}
OF_FAMILIES["mixtral"] = {
    "num_local_experts": [8, 8, 0, 2, 1 << 20],
    "num_experts_per_tok": [2, 2, 9, 0],
    "sliding_window": [None, 16, 0],
}
OF_FAMILIES["granitemoe"] = OF_FAMILIES["mixtral"] | {
    "attention_multiplier": [None, 0.1, 0.0, -1.0],
    "embedding_multiplier": [None, 12.0, "12"],
    "logits_scaling": [None, 6.0, 0],
    "sliding_window": [None],
}
OF_FAMILIES["mellum"] = OF_FAMILIES["qwen3_moe"] | {
    "layer_types": [None, ["full_attention"] * 2, ["sliding_attention"] * 2, ["else"] * 2],
    "mlp_layer_types": [None, ["sparse"] * 2, ["dense", "sparse"]],
    "rope_parameters": [
        None,
        {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}},
        {"full_attention": {"rope_theta": 5e5}},
        {"full_attention": 3},
    ],
}
OF_FAMILIES["gpt_oss"] = {
    **OF_FAMILIES["mixtral"],
    "head_dim": [4, 8, 9],
    "swiglu_limit": [None, 7.0, -1.0, "7"],
    "swiglu_alpha": [None, 1.702, 0],
    "layer_types": [None, None, ["full_attention"] * 2, ["else"] * 2],
    "quantization_config": [None, {"quant_method": "mxfp4"}],
}
OF_FAMILIES["smallthinker"] = {
    "moe_num_primary_experts": [8, 8, 0, 2, 1 << 20],
    "moe_num_active_primary_experts": [2, 2, 9, 0],
    "moe_ffn_hidden_size": [16, 16, 0],
    "moe_primary_router_apply_softmax": [None, True, 1],
    "rope_layout": [None, [1], [1, 0], [2, 1], 1],
    "sliding_window_layout": [None, [0], [1, 0], [1, 2]],
    "sliding_window_size": [None, 16, 0],
    "moe_enable_early_router": [None, True, False],
}
OF_FAMILIES["glm4_moe"] = {
    "n_routed_experts": [8, 8, 0, 2, 1 << 20],
    "num_experts_per_tok": [2, 2, 9, 0],
    "moe_intermediate_size": [16, 16, 0, "16"],
    "first_k_dense_replace": [0, 0, None, 1, 5, -1],
    "n_group": [None, 1, 2, 3],
    "topk_group": [None, 1, 2],
    "n_shared_experts": [None, 1, 2, 0],
    "routed_scaling_factor": [None, 1.8, -1.0],
    "norm_topk_prob": [None, True, 1],
}
OF_FAMILIES["RefinedWebModel"] = OF_FAMILIES["RefinedWeb"] = OF_FAMILIES["falcon"]
OF_FAMILIES["qwen3"] = OF_FAMILIES["qwen2"]


def drawn(model_type: str, rng: random.Random) -> dict[str, Any]:
    choices = COMMON | OF_FAMILIES.get(model_type, {})
    values = {
        key: usual[0] if rng.random() < USUAL_SHARE else rng.choice(usual)
        for key, usual in choices.items()
    }
    return {"model_type": model_type} | {k: v for k, v in values.items() if v is not None}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_refusal_names_a_key_of_the_config(model_type: str) -> None:
    rng = random.Random(f"{model_type} 25")
    described, refused = 0, 0
    for _ in range(CONFIGS_PER_FAMILY):
        values = drawn(model_type, rng)
        path = Path("/nowhere/config.json")
        try:
            spec = describe_config(Config(path, values))
        except ModelError as problem:
            refused += 1
            said = str(problem)
            assert said.startswith(f"{path}: ")
            # A key that is not there has a default, which an error may name, too.
            named = set(re.findall(r"\w+", said)) & {*COMMON, *OF_FAMILIES.get(model_type, {})}
            assert named, said
            assert "spec:" not in said
        else:
            described += 1
            assert isinstance(spec, ModelSpec)
            assert ModelSpec.from_json(spec.to_json()) == spec
    assert described >= 3
    assert refused >= 20
