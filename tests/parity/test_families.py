"""Every family against transformers in f32: prompts at once, token by token, greedy answers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from flashllm.convert import convert, verify

from flashllm.flash.manifest import read_manifest
from tests.support.compare import Oracle, check_prefill, check_steps, oracle
from tests.support.tiny import tiny

SPARSE = ("relu", "fatrelu", "relu2", "drelu")

FALCON: dict[str, Any] = {"ffn_hidden_size": 83, "activation": "relu"}
GATED: dict[str, Any] = {"intermediate_size": 83, "num_key_value_heads": 2}
WIDE: dict[str, Any] = {**GATED, "num_attention_heads": 3, "num_key_value_heads": 1}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon, keys shared by all, one norm": ("falcon", FALCON),
    "falcon, keys shared by all, dense": ("falcon", {**FALCON, "activation": "gelu"}),
    "falcon, new, grouped, two norms": (
        "falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon, new, grouped, one norm": (
        "falcon",
        {
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 3,
            "num_ln_in_parallel_attn": 1,
        },
    ),
    "falcon, new, one key, biases": (
        "falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 1, "bias": True},
    ),
    "falcon, classic, sequential, biases": (
        "falcon",
        {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon, classic, untied": (
        "falcon",
        {**FALCON, "multi_query": False, "tie_word_embeddings": False},
    ),
    "llama, relu, grouped keys": ("llama", {**GATED, "hidden_act": "relu"}),
    "llama, silu, one key": ("llama", {**GATED, "num_key_value_heads": 1}),
    "llama, fatrelu": ("llama", {**GATED, "hidden_act": "fatrelu", "hidden_act_param": 0.1}),
    "llama, biases everywhere": (
        "llama",
        {**GATED, "hidden_act": "relu", "attention_bias": True, "mlp_bias": True},
    ),
    "llama, biases everywhere, dense": (
        "llama",
        {**GATED, "hidden_act": "gelu", "attention_bias": True, "mlp_bias": True},
    ),
    "llama, heads of their own width, tied": (
        "llama",
        {**GATED, "hidden_act": "relu2", "head_dim": 10, "tie_word_embeddings": True},
    ),
    "mistral, window shorter than the prompt": ("mistral", {**GATED, "sliding_window": 9}),
    "mistral, relu, heads of their own width": (
        "mistral",
        {**GATED, "hidden_act": "relu", "sliding_window": None, "head_dim": 8},
    ),
    "qwen2": ("qwen2", GATED),
    "qwen2, window in the upper layers": (
        "qwen2",
        {
            **GATED,
            "use_sliding_window": True,
            "sliding_window": 11,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    ),
    "qwen3": ("qwen3", {**GATED, "head_dim": 16}),
    "qwen3, windows by layer, biases": (
        "qwen3",
        {
            **GATED,
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 10,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "arcee": ("arcee", GATED),
    "arcee, biases": ("arcee", {**GATED, "attention_bias": True, "mlp_bias": True}),
    "nemotron": ("nemotron", WIDE),
    "nemotron, biases": (
        "nemotron",
        {**WIDE, "attention_bias": True, "mlp_bias": True, "head_dim": 8},
    ),
    "phi": ("phi", {**WIDE, "partial_rotary_factor": 0.4}),
    "phi, relu, grouped keys": (
        "phi",
        {**GATED, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_act": "relu"},
    ),
    "phi3": ("phi3", GATED),
    "phi3, window, part of a head": (
        "phi3",
        {**WIDE, "sliding_window": 13, "partial_rotary_factor": 0.5},
    ),
}


def build(name: str, root: Path) -> tuple[torch.nn.Module, Path]:
    model_type, changes = CASES[name]
    model = tiny(model_type, **changes)
    model.save_pretrained(root / "source")
    convert(root / "source", root / "converted")
    return model, root / "converted"


@pytest.fixture(scope="module", params=list(CASES))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Oracle, Path]:
    model, converted = build(request.param, tmp_path_factory.mktemp("family"))
    return oracle(model), converted


@pytest.mark.parametrize("length", [1, 5, 70])
def test_prefill(pair: tuple[Oracle, Path], length: int) -> None:
    check_prefill(*pair, length)


def test_step_by_step(pair: tuple[Oracle, Path]) -> None:
    spec = read_manifest(pair[1]).spec
    selects = ["all"]
    if spec.sparse:
        selects += ["oracle", "gate"] if spec.gate == "resident" else ["oracle"]
    for select in selects:
        check_steps(*pair, select)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["falcon, new, grouped, two norms", "llama, fatrelu", "nemotron, biases", "qwen3"]
)
def test_narrow_weights(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    """The arithmetic stays f32: the oracle computes so, with the values that the file holds."""
    model_type, changes = CASES[name]
    model = tiny(model_type, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    copy.deepcopy(model).to(dtype).save_pretrained(tmp_path / "source")

    convert(tmp_path / "source", tmp_path / "converted")

    spec = read_manifest(tmp_path / "converted").spec
    assert spec.dtype == {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    check_prefill(oracle(model), tmp_path / "converted", 40)
    check_steps(oracle(model), tmp_path / "converted", None)


def test_gates_lie_where_they_should(pair: tuple[Oracle, Path]) -> None:
    spec = read_manifest(pair[1]).spec
    assert spec.sparse == (spec.activation in SPARSE)
    if spec.gated:
        assert spec.gate == ("resident" if spec.sparse else "bundled")
    assert verify(pair[1]).ok
