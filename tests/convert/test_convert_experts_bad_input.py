"""Experts that are not what the configuration says: an error that names it, and no model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flashllm.errors import TensorMismatch, UnsupportedModel, UsageError
from tests.support.refused import refuse
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
