"""Checkpoints in floats of eight bits with scales of squares, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, convert_shards
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from flashllm.errors import TensorMismatch, UnsupportedModel
from flashllm.flash.manifest import read_manifest
from tests.support.compare import Oracle, check_prefill, oracle
from tests.support.local_shards import LocalShards, split
from tests.support.refused import refuse
from tests.support.tiny import rewrite_config, tiny
from tools.convert.source.blocks import decode

MIXTURE: dict[str, Any] = {
    "hidden_size": 160,
    "moe_intermediate_size": 192,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 2,
    "head_dim": 48,
}
DENSE: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 288,
    "num_key_value_heads": 2,
    "head_dim": 48,
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
Tensors = dict[str, torch.Tensor]


def write(root: Path, family: str, **sizes: Any) -> tuple[Oracle, Path, Path]:
    """A random model, its checkpoint in bf16 and the one in fp8 with the same values."""
    model = tiny(family, **sizes)
    model.save_pretrained(root / "plain")
    generator = torch.Generator().manual_seed(6)
    plain: Tensors = {}
    quantised: Tensors = {}
    for name, tensor in load_file(root / "plain" / "model.safetensors").items():
        plain[name] = quantised[name] = tensor.bfloat16()
        if not name.endswith("_proj.weight"):
            continue
        weights = (tensor * 100).to(torch.float8_e4m3fn)
        squares = [-(-size // 128) for size in tensor.shape]
        scales = 0.005 + torch.rand(squares, generator=generator) / 100
        wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        values = weights.float() * wide[: tensor.shape[0], : tensor.shape[1]]
        plain[name] = values.bfloat16()
        quantised |= {name: weights, f"{name}_scale_inv": scales}
    save_file(plain, root / "plain" / "model.safetensors", {"format": "pt"})
    (root / "fp8").mkdir()
    save_file(quantised, root / "fp8" / "model.safetensors", {"format": "pt"})
    (root / "fp8" / "config.json").write_text((root / "plain" / "config.json").read_text())
    rewrite_config(root / "fp8", {"quantization_config": FP8})
    whole = type(model).from_pretrained(root / "plain", dtype=torch.float32)
    return oracle(whole.eval()), root / "plain", root / "fp8"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, Path, Path]:
    return write(tmp_path_factory.mktemp("fp8"), "qwen3_moe", **MIXTURE)


def contents(directory: Path) -> tuple[bytes, bytes]:
    """What a converted model holds, without the header that names its source."""
    bundles = (directory / "ffn.bundles").read_bytes()[16384:]
    return bundles, (directory / "resident.safetensors").read_bytes()


def test_every_byte_means_what_torch_says() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).float().numpy() * np.float32(0.3)
    blocks = np.zeros((8, 36), np.uint8)
    blocks[:, :4] = np.frombuffer(np.float32(0.3).tobytes(), np.uint8)
    blocks[:, 4:] = codes.numpy().reshape(8, 32)
    np.testing.assert_array_equal(decode(blocks.reshape(-1), "fp8"), expected)


def test_squares_are_decoded_as_transformers_does(tmp_path: Path) -> None:
    """Whole squares: those cut off by an edge it refuses."""
    _, _, source = write(tmp_path, "qwen3_moe", **MIXTURE | {"hidden_size": 256, "head_dim": 64})
    convert(source, tmp_path / "model", dtype="f32")
    tensors = load_file(source / "model.safetensors")
    found = load_file(tmp_path / "model" / "resident.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    expected = Fp8Dequantize(None)._dequantize_one(tensors[name], tensors[f"{name}_scale_inv"])
    assert any(torch.equal(tensor, expected) for tensor in found.values())


@pytest.mark.parametrize("dtype", [None, "f32"])
def test_they_hold_the_values_of_the_plain_one(
    mixture: tuple[Oracle, Path, Path], tmp_path: Path, dtype: str | None
) -> None:
    expected, plain, source = mixture
    convert(source, tmp_path / "fp8", dtype=dtype)
    assert read_manifest(tmp_path / "fp8").spec.dtype == (dtype or "bf16")
    assert "requantised" not in read_manifest(tmp_path / "fp8").source
    if dtype is None:
        convert(plain, tmp_path / "plain")
        assert contents(tmp_path / "fp8") == contents(tmp_path / "plain")
        check_prefill(expected, tmp_path / "fp8", 70, tolerance=1e-3, select=None)


def test_a_model_without_experts(tmp_path: Path) -> None:
    """Its down projection is turned round, squares cut off by edges and all."""
    _, plain, source = write(tmp_path, "qwen3", **DENSE)
    convert(source, tmp_path / "of-fp8")
    convert(plain, tmp_path / "of-plain")
    assert contents(tmp_path / "of-fp8") == contents(tmp_path / "of-plain")


def test_integers_are_a_second_rounding(mixture: tuple[Oracle, Path, Path], tmp_path: Path) -> None:
    refuse(mixture[2], UnsupportedModel, r"rounded a second time: .*FP8 to int8", dtype="int8")
    convert(mixture[2], tmp_path / "model", dtype="int8", requantise=True)
    assert read_manifest(tmp_path / "model").source["requantised"] == ["FP8"]


def test_shards_one_by_one(mixture: tuple[Oracle, Path, Path], tmp_path: Path) -> None:
    convert(mixture[2], tmp_path / "whole")
    directory = split(mixture[2], tmp_path / "source", lambda name: "layers.1" in name)
    convert_shards(LocalShards(directory), tmp_path / "shards")
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")


STEM = "model.layers.0.mlp.experts.2.down_proj.weight"


def nan_at(weights: torch.Tensor) -> torch.Tensor:
    weights.view(torch.uint8)[3, 5] = 0x7F
    return weights


@pytest.mark.parametrize(
    ("ending", "how", "match"),
    [
        ("_scale_inv", None, "down_proj.weight_scale_inv is absent"),
        ("_scale_inv", lambda t: t[:1], r"weight_scale_inv is f32 \[1, 2\]"),
        ("_scale_inv", lambda t: t.half(), "weight_scale_inv is f16"),
        ("_scale_inv", lambda t: t * float("inf"), "NaN or infinity"),
        ("", lambda t: t[:, :180], r"weight is f8_e4m3 \[160, 180\]"),
        ("", lambda t: t[:100], r"weight_scale_inv is f32 \[2, 2\]; weight is f8_e4m3 \[100"),
        ("", nan_at, "NaN or infinity in row 3,"),
    ],
)
def test_scales_that_do_not_fit(
    mixture: tuple[Oracle, Path, Path],
    tmp_path: Path,
    ending: str,
    how: Callable[[torch.Tensor], torch.Tensor] | None,
    match: str,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tensors = load_file(mixture[2] / "model.safetensors")
    changed = tensors.pop(f"{STEM}{ending}")
    if how is not None:
        tensors[f"{STEM}{ending}"] = how(changed.clone()).contiguous()
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text((mixture[2] / "config.json").read_text())
    refuse(source, TensorMismatch, match)


@pytest.mark.parametrize(
    "change", [{"weight_block_size": [1, 32]}, {"weight_block_size": None}, {"fmt": "e5m2"}]
)
def test_other_forms_are_refused(
    mixture: tuple[Oracle, Path, Path], tmp_path: Path, change: dict[str, Any]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    config = json.loads((mixture[2] / "config.json").read_text())
    config["quantization_config"] |= change
    (source / "config.json").write_text(json.dumps(config))
    tensors = load_file(mixture[2] / "model.safetensors")
    save_file(tensors, source / "model.safetensors")
    refuse(source, UnsupportedModel, f"quantization_config has {next(iter(change))} ")
