"""Configurations as they are published, odd keys included: what is read from them.

Written down from the model cards' `config.json`, shortened by keys that no result depends on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import describe
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from flashllm.errors import UnsupportedModel
from flashllm.spec import ModelSpec

USUAL = {"initializer_range": 0.02, "use_cache": True, "attention_dropout": 0.0}


def spec(root: Path, model_type: str, **values: Any) -> ModelSpec:
    config = {**USUAL, "model_type": model_type, **values}
    (root / "config.json").write_text(json.dumps(config))
    return describe(root)


def sizes(d: int, ffn: int, layers: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": d,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        **more,
    }


def test_one_with_scaled_positions_and_three_ends(tmp_path: Path) -> None:
    found = spec(
        tmp_path,
        "llama",
        **sizes(4096, 14336, 32, 32, 128256),
        num_key_value_heads=8,
        bos_token_id=128000,
        eos_token_id=[128001, 128008, 128009],
        hidden_act="silu",
        max_position_embeddings=131072,
        mlp_bias=False,
        pretraining_tp=1,
        rope_scaling={
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        rope_theta=500000.0,
        torch_dtype="bfloat16",
    )
    assert found.eos_ids == (128001, 128008, 128009)
    assert (found.gate, found.dtype, found.n_kv_heads) == ("bundled", "bf16", 8)
    assert found.rope is not None
    assert (found.rope.scaling, found.rope.original_positions) == ("llama3", 8192)


def test_keys_of_no_meaning_are_no_error(tmp_path: Path) -> None:
    found = spec(
        tmp_path,
        "llama",
        **sizes(576, 1536, 30, 9, 49152),
        num_key_value_heads=3,
        hidden_act="silu",
        is_llama_config=True,
        rope_interleaved=False,
        rope_scaling=None,
        rope_theta=100000,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        _attn_implementation_autoset=True,
        output_attentions=False,
        temperature=0.6,
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
    )
    assert found.tied_head
    assert found.rope is not None
    assert found.rope.theta == 100000.0


def test_the_first_of_its_kind_says_little(tmp_path: Path) -> None:
    found = spec(tmp_path, "llama", **sizes(4096, 11008, 32, 32, 32000), max_sequence_length=2048)
    assert (found.activation, found.max_positions, found.n_kv_heads) == ("silu", 2048, 32)
    assert (found.bos_id, found.eos_ids) == (1, (2,))


@pytest.mark.parametrize("window", [None, 4096])
def test_heads_wider_than_their_share(tmp_path: Path, window: int | None) -> None:
    found = spec(
        tmp_path,
        "mistral",
        **sizes(5120, 14336, 40, 32, 131072),
        head_dim=128,
        num_key_value_heads=8,
        hidden_act="silu",
        max_position_embeddings=1024000,
        sliding_window=window,
    )
    assert found.head_dim == 128
    assert found.attention_windows == (() if window is None else (4096,) * 40)


def test_a_window_that_is_switched_off(tmp_path: Path) -> None:
    found = spec(
        tmp_path,
        "qwen2",
        **sizes(3584, 18944, 28, 28, 152064),
        num_key_value_heads=4,
        max_window_layers=28,
        sliding_window=131072,
        use_sliding_window=False,
        use_mrope=False,
    )
    assert (found.attention_windows, found.attention_bias) == ((), True)
    assert not found.attention_output_bias
    assert (found.bos_id, found.eos_ids) == (None, ())


def test_two_names_of_one_kind_of_scaling(tmp_path: Path) -> None:
    found = spec(
        tmp_path,
        "arcee",
        **sizes(2560, 18432, 36, 20, 128004),
        head_dim=128,
        num_key_value_heads=4,
        hidden_act="relu2",
        max_position_embeddings=65536,
        rope_scaling={
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 20.0,
            "mscale": 1.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "type": "yarn",
        },
    )
    assert found.rope is not None
    assert found.rope.attention_factor == pytest.approx(1.29957, abs=1e-5)
    assert (found.activation, found.gate, found.sparse) == ("relu2", "none", True)


def test_scaling_that_is_sharper_by_two_weights(tmp_path: Path) -> None:
    """As published configurations of DeepSeek have it; the factor is that of transformers."""
    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.2, "mscale_all_dim": 0.7}
    scaling["original_max_position_embeddings"] = 4096
    values = sizes(128, 256, 2, 4, 64, max_position_embeddings=163840)
    found = spec(tmp_path, "llama", **values, hidden_act="silu", rope_scaling=scaling)
    config = LlamaConfig(**values, rope_parameters={**scaling, "rope_theta": 10000.0})
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    assert found.rope is not None
    assert found.rope.attention_factor == pytest.approx(factor, abs=1e-6)
    assert factor > 1.05


def test_scaling_that_kinds_of_layers_have_alike(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    values = sizes(128, 256, 2, 4, 64, hidden_act="silu", max_position_embeddings=256)
    alike = {"full_attention": scaling, "sliding_attention": scaling}
    found = spec(tmp_path, "llama", **values, rope_parameters=alike)
    assert found == spec(tmp_path, "llama", **values, rope_parameters=scaling)


def test_scaled_in_three_places(tmp_path: Path) -> None:
    found = spec(
        tmp_path,
        "minicpm",
        **sizes(1536, 3840, 52, 24, 73440),
        num_key_value_heads=8,
        hidden_act="fatrelu",
        hidden_act_param=0.01,
        scale_emb=12,
        scale_depth=1.4,
        dim_model_base=256,
        num_experts=0,
        auto_map={"AutoConfig": "configuration_minicpm.MiniCPMConfig"},
    )
    assert (found.activation, found.activation_threshold, found.gate) == (
        "fatrelu", 0.01, "resident",
    )  # fmt: skip
    assert found.embed_scale == 12.0
    assert found.residual_scale == pytest.approx(1.4 / 52**0.5)
    assert found.logit_scale == pytest.approx(1 / 6)


def test_heads_of_which_two_fifths_turn(tmp_path: Path) -> None:
    found = spec(
        tmp_path,
        "phi",
        **{k: v for k, v in sizes(2560, 10240, 32, 32, 51200).items() if k != "rms_norm_eps"},
        layer_norm_eps=1e-5,
        partial_rotary_factor=0.4,
        embd_pdrop=0.0,
        resid_pdrop=0.1,
        hidden_act="gelu_new",
        qk_layernorm=False,
        bos_token_id=50256,
        eos_token_id=50256,
    )
    assert found.rope is not None
    assert (found.rope.dims, found.head_dim, found.head_bias) == (32, 80, True)


@pytest.mark.parametrize("new", [False, True])
def test_largest_of_its_time(tmp_path: Path, new: bool) -> None:
    """The two sizes of which the paper's recipe and its relu came out, and a later one."""
    common = {
        "alibi": False,
        "bias": False,
        "hidden_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "multi_query": True,
        "parallel_attn": True,
        "vocab_size": 65024,
        "num_hidden_layers": 60 if new else 32,
        "new_decoder_architecture": new,
    }
    if new:
        found = spec(
            tmp_path, "falcon", **common, hidden_size=8192, num_attention_heads=128, num_kv_heads=8
        )
        later = spec(
            tmp_path,
            "falcon",
            **common,
            hidden_size=4096,
            num_attention_heads=32,
            num_kv_heads=8,
            ff_factor=4,
            ffn_hidden_size=16384,
            num_ln_in_parallel_attn=1,
            tie_word_embeddings=False,
        )
        assert (found.shared_norm, later.shared_norm, later.d_ffn) == (False, True, 16384)
    else:
        found = spec(tmp_path, "falcon", **common, hidden_size=4544, num_attention_heads=71)
    assert (found.n_kv_heads, found.shared_norm) == ((8, False) if new else (1, True))
    assert (found.d_ffn, found.head_dim, found.tied_head) == (4 * found.d_model, 64, True)


def test_factors_for_long_and_short_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="rope_scaling: type is 'longrope'"):
        spec(
            tmp_path,
            "phi3",
            **sizes(3072, 8192, 32, 32, 32064),
            original_max_position_embeddings=4096,
            max_position_embeddings=131072,
            rope_scaling={"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
            sliding_window=262144,
        )
