"""What a configuration or a user says that cannot be followed: an error that names it, and no
model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from flashllm.convert import describe
from safetensors.torch import load_file, save_file

from flashllm.errors import (
    FlashllmError,
    NotACheckpoint,
    TensorMismatch,
    UnsupportedModel,
    UsageError,
)
from tests.support.refused import refuse
from tests.support.tiny import rewrite_config, tiny

GATED: dict[str, Any] = {"intermediate_size": 20, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "llama": GATED,
    "mistral": GATED,
    "qwen2": GATED,
    "phi": {"intermediate_size": 20, "num_attention_heads": 3},
    "phi3": GATED,
    "falcon": {"ffn_hidden_size": 20},
    "nemotron": {**GATED, "num_attention_heads": 3, "num_key_value_heads": 3},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for model_type, changes in MODELS.items():
        tiny(model_type, **changes).save_pretrained(root / model_type)
    return root


def copy_of(sources: Path, model_type: str, root: Path, change: dict[str, Any]) -> Path:
    source = root / "source"
    shutil.copytree(sources / model_type, source)
    rewrite_config(source, change)
    return source


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


UNSUPPORTED = [
    ("llama", {"hidden_act": "mish"}, "hidden_act is 'mish'; supported: relu"),
    ("llama", {"hidden_act": ["relu"]}, "hidden_act is"),
    ("llama", {"hidden_act": "fatrelu"}, "hidden_act_param is missing.*--fatrelu-threshold"),
    ("llama", {"hidden_act": "fatrelu", "hidden_act_param": -1}, "hidden_act_param is -1"),
    ("llama", {"hidden_act": "relu", "hidden_act_param": 0.1}, "relu has no parameter"),
    ("nemotron", {"hidden_act": "drelu"}, "hidden_act is 'drelu'; supported"),
    ("falcon", {"activation": "quick_gelu"}, "activation is 'quick_gelu'"),
    ("llama", rope("dynamic", factor=2.0), "rope_type is 'dynamic'; supported: default, linear"),
    ("llama", rope("longrope", factor=2.0), "rope_type is 'longrope'"),
    ("llama", rope("default", factor=2.0), "factor is 2.0; nobody"),
    ("llama", rope("linear", factor=2.0, alpha=3), "alpha is 3; nobody"),
    ("llama", rope("yarn", factor=2.0, low_freq_factor=1.0), "low_freq_factor is 1.0; nobody"),
    ("phi3", rope("yarn", factor=2.0), "rope_type is 'yarn'; supported: default"),
    (
        "phi3",
        {"rope_parameters": None, "rope_scaling": {"type": "longrope", "long_factor": [1.0]}},
        "rope_scaling: type is 'longrope'",
    ),
    (
        "llama",
        {"rope_parameters": None, "rope_scaling": {"type": "su", "factor": 2.0}},
        "rope_scaling: type is 'su'",
    ),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_parameters is set too"),
    (
        "llama",
        {"rope_parameters": {"a": {"rope_type": "default"}, "b": {"rope_type": "linear"}}},
        "differs between kinds of layers",
    ),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ("phi", {"partial_rotary_factor": 0.5, "rotary_pct": 0.25}, "contradict each other"),
    (
        "phi",
        rope("default", partial_rotary_factor=0.25),
        "rope_parameters: partial_rotary_factor .* are 3 rotated values",
    ),
    ("falcon", {"alibi": True}, "alibi is True"),
    ("falcon", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
    (
        "falcon",
        {"new_decoder_architecture": True, "parallel_attn": False},
        "parallel_attn is False; with new_decoder_architecture it must be true",
    ),
    ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm is True"),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ("llama", {"num_attention_heads": 5, "head_dim": None}, "num_attention_heads is 5"),
    (
        "llama",
        {"num_key_value_heads": 4},
        "num_key_value_heads is 4; 4 does not divide 6, which num_attention_heads is",
    ),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    *[
        ("llama", {key: value}, f"{key} is .*nobody here knows what it changes")
        for key, value in (
            ("attention_multiplier", 0.5),
            ("logits_scaling", 8.0),
            ("final_logit_softcapping", 30.0),
            ("attn_logit_softcapping", 50.0),
            ("clip_qkv", 8.0),
            ("embedding_multiplier", 12.0),
            ("residual_multiplier", 0.2),
            ("use_qk_norm", True),
            ("sliding_window", 64),
            ("num_local_experts", 8),
            ("no_rope_layers", [1, 0]),
            ("rope_interleaved", True),
            ("alibi", True),
            ("bias", True),
        )
    ],
]


@pytest.mark.parametrize(("model_type", "change", "match"), UNSUPPORTED, ids=str)
def test_unsupported(
    sources: Path, tmp_path: Path, model_type: str, change: dict[str, Any], match: str
) -> None:
    source = copy_of(sources, model_type, tmp_path, change)
    refuse(source, UnsupportedModel, match)
    with pytest.raises(UnsupportedModel, match=match):
        describe(source)


@pytest.mark.parametrize(
    ("model_type", "change", "match"),
    [
        ("llama", rope("linear"), "rope_parameters: factor is missing"),
        ("llama", rope("linear", factor=0), "factor is 0"),
        ("llama", rope("linear", factor="two"), "factor is 'two'"),
        ("llama", rope("llama3", factor=8.0, low_freq_factor=1.0), "high_freq_factor is missing"),
        (
            "llama",
            rope("llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0),
            "high_freq_factor is not above",
        ),
        ("llama", rope("yarn", factor=4.0, truncate=1), "truncate is 1"),
        (
            "llama",
            rope("yarn", factor=4.0, original_max_position_embeddings=-4),
            "original_max_position_embeddings is -4",
        ),
        ("llama", {"rope_theta": True, "rope_parameters": None}, "rope_theta is True"),
        ("llama", {"rope_parameters": "yarn"}, "rope_parameters is 'yarn'; expected an object"),
        ("llama", {"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ("llama", {"head_dim": 0}, "head_dim is 0"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("mistral", {"sliding_window": 2.5}, "sliding_window is 2.5"),
        ("qwen2", {"layer_types": ["full_attention"]}, "not a list of 2 names"),
        ("qwen2", {"layer_types": None, "max_window_layers": -1}, "max_window_layers is -1"),
        ("falcon", {"num_attention_heads": None}, "num_attention_heads is missing"),
    ],
    ids=str,
)
def test_nonsense(
    sources: Path, tmp_path: Path, model_type: str, change: dict[str, Any], match: str
) -> None:
    refuse(copy_of(sources, model_type, tmp_path, change), NotACheckpoint, match)


@pytest.mark.parametrize(
    ("model_type", "change", "match"),
    [
        ("llama", {"attention_bias": True}, "missing: .*self_attn.k_proj.bias"),
        ("llama", {"mlp_bias": True}, "missing: .*mlp.gate_proj.bias"),
        ("llama", {"intermediate_size": 24}, r"\[20, 36\], but config.json asks for \[24, 36\]"),
        ("llama", {"head_dim": 8}, r"q_proj.weight .*\[36, 36\], .*\[48, 36\]"),
        ("llama", {"num_key_value_heads": 3}, r"k_proj.weight .*\[12, 36\], .*\[18, 36\]"),
        ("llama", {"model_type": "arcee"}, "not expected: .*gate_proj"),
        ("llama", {"model_type": "qwen2"}, "missing: .*q_proj.bias"),
        ("phi3", {"model_type": "llama"}, "missing: .*; not expected: .*gate_up_proj"),
        ("falcon", {"new_decoder_architecture": True}, "missing: .*ln_attn"),
        ("falcon", {"multi_query": False}, r"query_key_value.weight .*\[48, 36\], .*\[108, 36\]"),
        ("falcon", {"parallel_attn": False}, "missing: .*post_attention_layernorm"),
        ("phi3", {"num_key_value_heads": 1}, r"qkv_proj.weight .*\[60, 36\], .*\[48, 36\]"),
    ],
    ids=str,
)
def test_config_and_tensors_contradict(
    sources: Path, tmp_path: Path, model_type: str, change: dict[str, Any], match: str
) -> None:
    refuse(copy_of(sources, model_type, tmp_path, change), TensorMismatch, match)


@pytest.mark.parametrize(
    ("model_type", "options", "match"),
    [
        ("llama", {"act": "mish"}, "--act is 'mish'; for this model_type: relu, .*drelu"),
        ("llama", {"act": ""}, "--act is ''"),
        ("nemotron", {"act": "drelu"}, "--act is 'drelu'"),
        ("llama", {"fatrelu_threshold": 0.1}, "the activation here is silu"),
        ("llama", {"act": "relu2", "fatrelu_threshold": 0.1}, "the activation here is relu2"),
        ("llama", {"act": "relu", "fatrelu_threshold": -0.1}, "expected 0 or more"),
        ("llama", {"act": "relu", "fatrelu_threshold": float("nan")}, "expected 0 or more"),
        ("llama", {"act": "relu", "fatrelu_threshold": float("inf")}, "expected 0 or more"),
        ("llama", {"act": "relu", "predictors": "train"}, "a gate that says exactly"),
        ("llama", {"predictors": "train"}, "silu, is never zero"),
        ("phi", {"predictors": "train"}, "gelu_tanh, is never zero"),
        ("phi", {"predictors": "checkpoint"}, "gelu_tanh, is never zero"),
        ("llama", {"act": "relu", "predictors": "checkpoint"}, "there are none in"),
        ("llama", {"act": "relu", "predictors": Path("absent")}, "absent: no such file"),
    ],
    ids=str,
)
def test_options(
    sources: Path, tmp_path: Path, model_type: str, options: dict[str, Any], match: str
) -> None:
    refuse(copy_of(sources, model_type, tmp_path, {}), UsageError, match, **options)


def test_fatrelu_by_hand_needs_a_threshold(sources: Path, tmp_path: Path) -> None:
    source = copy_of(sources, "llama", tmp_path, {})
    refuse(source, UnsupportedModel, "needs a threshold: give --fatrelu-threshold", act="fatrelu")


@pytest.mark.parametrize("model_type", ["smalltalker", "sparsetransformer", "turbo"])
def test_code_of_others_is_not_run(sources: Path, tmp_path: Path, model_type: str) -> None:
    auto = {"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"}
    change = {"model_type": model_type, "auto_map": auto, "trust_remote_code": True}
    source = copy_of(sources, "llama", tmp_path, change)
    (source / "modeling.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()"
    )
    refuse(source, UnsupportedModel, f"model_type is '{model_type}'; supported: ")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("broken", "error", "match"),
    [
        ({"fc1": torch.ones(4, 30)}, TensorMismatch, "fc1 is|fc1.weight"),
        ({"fc2": torch.ones(20, 5)}, TensorMismatch, "fc2 is|fc2.weight"),
        ({"fc1": torch.full((4, 36), torch.nan)}, TensorMismatch, "NaN"),
        ({"fc1": torch.ones(4, 36, dtype=torch.int32)}, TensorMismatch, "i32"),
        ({"fc1": torch.ones(144)}, TensorMismatch, "expected a matrix"),
        ({"fc2": None}, TensorMismatch, "predictors of some layers only; missing: .*fc2"),
    ],
)
def test_predictors_inside_that_are_wrong(
    sources: Path,
    tmp_path: Path,
    broken: dict[str, torch.Tensor | None],
    error: type[FlashllmError],
    match: str,
) -> None:
    source = copy_of(sources, "mistral", tmp_path, {"model_type": "bamboo", "hidden_act": "relu"})
    tensors: dict[str, torch.Tensor | None] = dict(load_file(source / "model.safetensors"))
    names = {}
    for layer in range(2):
        names = {
            leaf: f"model.layers.{layer}.mlp.predictor.{leaf}.weight" for leaf in ("fc1", "fc2")
        }
        tensors |= {names["fc1"]: torch.ones(4, 36), names["fc2"]: torch.ones(20, 4)}
    tensors |= {names[leaf]: values for leaf, values in broken.items()}
    kept = {name: values for name, values in tensors.items() if values is not None}
    save_file(kept, source / "model.safetensors", {"format": "pt"})
    refuse(source, error, match, predictors="checkpoint")
