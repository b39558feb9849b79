"""Experts that are not what the configuration says: an error that names it, and no model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flashllm.convert import convert
from safetensors.torch import load_file, save_file

from flashllm.errors import (
    FlashllmError,
    NotACheckpoint,
    TensorMismatch,
    UnsupportedModel,
    UsageError,
)
from tests.support.refused import refuse
from tests.support.smallthinker import SmallThinker
from tests.support.tiny import rewrite_config, tiny

EXPERT = "model.layers.1.mlp.experts.2"
ROUTER = "model.layers.0.mlp.gate.weight"
FUSED = "model.layers.1.mlp.experts.gate_up_proj"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("experts")
    model = tiny(
        "qwen3_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        num_key_value_heads=2,
    )
    model.save_pretrained(root / "separate")
    model.save_pretrained(root / "fused", save_original_format=False)
    return root


def drop(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


def replace(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


def add(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: torch.zeros(2, 2)})


@pytest.mark.parametrize(
    ("kind", "change", "match"),
    [
        ("separate", drop(f"{EXPERT}.up_proj.weight"), f"missing: .*{EXPERT[6:]}.up_proj.weight"),
        ("separate", drop(ROUTER), "missing: .*layers.0.mlp.gate.weight"),
        ("separate", replace(ROUTER, lambda t: t[:, :-1]), "mlp.gate.weight .* shape"),
        ("separate", replace(ROUTER, lambda t: t[:-1]), "mlp.gate.weight .* shape"),
        ("separate", replace(f"{EXPERT}.down_proj.weight", torch.t), "down_proj.weight .* shape"),
        (
            "separate",
            replace(f"{EXPERT}.gate_proj.weight", lambda t: t[:-1]),
            f"{EXPERT}.gate_proj.weight .* shape",
        ),
        ("separate", add("model.layers.1.mlp.experts.4.up_proj.weight"), "not expected: .*4.up"),
        ("separate", add("model.layers.1.mlp.up_proj.weight"), "not expected: .*mlp.up_proj"),
        ("fused", drop(FUSED), "missing: .*layers.1.mlp.experts.gate_up_proj"),
        ("fused", replace(FUSED, lambda t: t[:-1]), "experts.gate_up_proj .* shape"),
        ("fused", replace(FUSED, lambda t: t.transpose(1, 2)), "experts.gate_up_proj .* shape"),
        ("fused", replace(FUSED, lambda t: t * torch.nan), "NaN or infinity in row"),
    ],
)
def test_tensors_that_do_not_fit(
    source: Path, tmp_path: Path, kind: str, change: Callable[[Tensors], Any], match: str
) -> None:
    shutil.copytree(source / kind, tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    refuse(tmp_path / "source", TensorMismatch, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5, but there are 4 experts"),
        ({"num_experts": 8}, "num_experts is 8, but num_local_experts is 4"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]; only models with experts in all"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2; only models with experts in all"),
        ({"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size is 8; nobody"),
        ({"hidden_act": "fatrelu_0.1"}, "experts have a gate of their own"),
    ],
)
def test_configurations_that_cannot_be_followed(
    source: Path, tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    shutil.copytree(source / "separate", tmp_path / "source")
    rewrite_config(tmp_path / "source", change)
    refuse(tmp_path / "source", UnsupportedModel, match)


@pytest.mark.parametrize(
    ("change", "match", "error"),
    [
        (
            {"moe_num_active_primary_experts": 8},
            "moe_num_active_primary_experts is 8, but there",
            UnsupportedModel,
        ),
        ({"moe_num_primary_experts": 6}, "not expected: .*experts.6.down", TensorMismatch),
        ({"rope_layout": [1, 0]}, "rope_layout is not a list of 3 times 0 or 1", NotACheckpoint),
        (
            {"sliding_window_layout": [0, 2, 0]},
            "sliding_window_layout is not a list of 3 times",
            NotACheckpoint,
        ),
        (
            {"moe_layer_layout": [1, 0, 1]},
            "moe_layer_layout is .*only models with experts in all",
            UnsupportedModel,
        ),
        (
            {"moe_enable_early_router": False},
            "moe_enable_early_router is False; only early",
            UnsupportedModel,
        ),
        (
            {"moe_enable_secondary_experts": True},
            "moe_enable_secondary_experts is True; only one",
            UnsupportedModel,
        ),
    ],
)
def test_smallthinkers_that_cannot_be_followed(
    tmp_path: Path, change: dict[str, Any], match: str, error: type[FlashllmError]
) -> None:
    SmallThinker().save(tmp_path / "source")
    rewrite_config(tmp_path / "source", change)
    refuse(tmp_path / "source", error, match)


@pytest.fixture(scope="module")
def dense_first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dense layer in front of two with experts, and a shared one in each."""
    root = tmp_path_factory.mktemp("glm")
    model = tiny(
        "glm4_moe",
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        intermediate_size=30,
        num_key_value_heads=2,
        num_hidden_layers=3,
        head_dim=12,
    )
    model.save_pretrained(root / "source")
    return root / "source"


@pytest.mark.parametrize(
    ("change", "match", "error"),
    [
        (
            {"first_k_dense_replace": 3},
            "dense_layers are all layers that there are",
            UnsupportedModel,
        ),
        (
            {"first_k_dense_replace": -1},
            "first_k_dense_replace is -1; expected a number",
            UnsupportedModel,
        ),
        (
            {"first_k_dense_replace": "1"},
            "first_k_dense_replace is '1'; expected a number",
            UnsupportedModel,
        ),
        ({"first_k_dense_replace": 2}, "missing: .*layers.1.mlp.down_proj", TensorMismatch),
        ({"n_group": 3}, "n_group: experts: groups is 3", UnsupportedModel),
        ({"n_shared_experts": 2}, "shared_experts.*shape", TensorMismatch),
    ],
)
def test_dense_layers_and_shared_experts_that_do_not_fit(
    dense_first: Path,
    tmp_path: Path,
    change: dict[str, Any],
    match: str,
    error: type[FlashllmError],
) -> None:
    shutil.copytree(dense_first, tmp_path / "source")
    rewrite_config(tmp_path / "source", change)
    refuse(tmp_path / "source", error, match)


def test_layers_that_predict_further_tokens_are_left_out(dense_first: Path, tmp_path: Path) -> None:
    shutil.copytree(dense_first, tmp_path / "more")
    path = tmp_path / "more" / "model.safetensors"
    tensors = load_file(path)
    for name in ("eh_proj.weight", "mlp.experts.0.up_proj.weight"):
        tensors[f"model.layers.3.{name}"] = torch.zeros(2, 2)
    save_file(tensors, path)
    found = []
    for source in (dense_first, tmp_path / "more"):
        convert(source, tmp_path / f"{source.name}-converted", dtype="f16")
        found.append((tmp_path / f"{source.name}-converted" / "ffn.bundles").read_bytes()[16384:])
    assert found[0] == found[1]
    tensors["model.layers.2.eh_proj.weight"] = torch.zeros(2, 2)
    save_file(tensors, path)
    refuse(tmp_path / "more", TensorMismatch, "not expected: .*layers.2.eh_proj")


def test_experts_by_turns_without_their_biases(tmp_path: Path) -> None:
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 20}
    model = tiny("gpt_oss", **sizes, num_key_value_heads=2, head_dim=10)
    model.save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    good = load_file(path)
    stack = "model.layers.0.mlp.experts"
    for change, match in (
        (drop(f"{stack}.down_proj_bias"), "missing: .*down_proj_bias"),
        (drop("model.layers.1.self_attn.sinks"), "missing: .*self_attn.sinks"),
        (replace(f"{stack}.gate_up_proj", lambda t: t.transpose(1, 2)), "gate_up_proj .* shape"),
        (
            replace(f"{stack}.down_proj", lambda t: t / (t != t[2, 3, 4])),
            f"{stack}.down_proj.* in row 3 and column 4 of matrix 2",
        ),
    ):
        tensors = dict(good)
        change(tensors)
        save_file(tensors, path)
        refuse(tmp_path / "source", TensorMismatch, match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"predictors": "train"}, "--predictors train: this model has experts"),
        ({"order": "coactivation"}, "--order coactivation: experts are read one by one"),
    ],
)
def test_options_that_are_of_no_use(
    source: Path, tmp_path: Path, options: dict[str, Any], match: str
) -> None:
    shutil.copytree(source / "separate", tmp_path / "source")
    refuse(tmp_path / "source", UsageError, match, **options)


def test_weights_too_small_for_an_encoding(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source / "separate", tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{EXPERT}.down_proj.weight"] *= 1e-7
    save_file(tensors, path)
    refuse(
        tmp_path / "source",
        TensorMismatch,
        f"{EXPERT}.down_proj.weight: all its weights",
        dtype="int4",
    )
