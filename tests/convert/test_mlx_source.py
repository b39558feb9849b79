"""Checkpoints of mlx-lm: groups with a scale and an offset, kept in f32 and rounded again else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, convert_shards, describe, verify
from flashllm.convert.source.checkpoint import open_checkpoint
from safetensors.torch import load_file, save_file

from flashllm.errors import TensorMismatch, UnsupportedModel
from flashllm.flash.manifest import format_requantised, read_manifest
from tests.convert.test_awq import SIZES, contents
from tests.support.local_shards import LocalShards, split
from tests.support.refused import refuse
from tests.support.tiny import rewrite_config, tiny

ROUTERS = {f"model.layers.{i}.mlp.gate": {"group_size": 64, "bits": 8} for i in range(2)}
CONFIG: dict[str, Any] = {"group_size": 32, "bits": 4, **ROUTERS}
STACK = "model.layers.0.mlp.switch_mlp.up_proj"
Tensors = dict[str, torch.Tensor]


def quantised(values: Tensors, stem: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random weights of this shape, put among `values` as mlx-lm has them; what they stand for."""
    random = np.random.default_rng(seed)
    setting = CONFIG.get(stem, CONFIG)
    bits, size = setting["bits"], setting["group_size"]
    groups = (*shape[:-1], shape[-1] // size)
    numbers = random.integers(0, 1 << bits, shape, dtype=np.uint32)
    scales, offsets = (torch.rand(groups) / 32).bfloat16(), (torch.rand(groups) / 4).bfloat16()
    words = np.zeros((*shape[:-1], shape[-1] * bits // 32), np.uint32)
    for place in range(32 // bits):  # the first in the lowest bits
        words |= numbers[..., place :: 32 // bits] << np.uint32(place * bits)
    values[f"{stem}.weight"] = torch.from_numpy(words)
    values[f"{stem}.scales"], values[f"{stem}.biases"] = scales, offsets
    wide = [one.float().repeat_interleave(size, -1) for one in (scales, offsets)]
    return torch.from_numpy(numbers.astype(np.float32)) * wide[0] + wide[1]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of mlx-lm with stacks of experts, and a plain one of the same values in f32."""
    root = tmp_path_factory.mktemp("mlx")
    torch.manual_seed(5)
    tiny("qwen3_moe", **SIZES).save_pretrained(root / "plain")
    mlx: Tensors = {}
    plain: Tensors = {}
    for seed, (name, tensor) in enumerate(load_file(root / "plain" / "model.safetensors").items()):
        stem = name.removesuffix(".weight")
        if ".mlp.experts." in name:
            continue
        if tensor.dim() < 2:
            mlx[name] = plain[name] = tensor.bfloat16()
        else:
            plain[name] = quantised(mlx, stem, tuple(tensor.shape), seed)
    for layer in range(2):
        for seed, (part, out, inputs) in enumerate(
            (("gate", 96, 64), ("up", 96, 64), ("down", 64, 96))
        ):
            block = f"model.layers.{layer}.mlp"
            stem = f"{block}.switch_mlp.{part}_proj"
            stack = quantised(mlx, stem, (4, out, inputs), 100 + 3 * layer + seed)
            for expert, matrix in enumerate(stack):
                plain[f"{block}.experts.{expert}.{part}_proj.weight"] = matrix.contiguous()
    for form, tensors in (("plain", plain), ("mlx", mlx)):
        (root / form).mkdir(exist_ok=True)
        save_file(tensors, root / form / "model.safetensors", {"format": "pt"})
    (root / "mlx" / "config.json").write_text((root / "plain" / "config.json").read_text())
    rewrite_config(root / "mlx", {"quantization": CONFIG, "quantization_config": CONFIG})
    return root / "mlx", root / "plain"


def test_f32_holds_every_value(sources: tuple[Path, Path], tmp_path: Path) -> None:
    for name, source in zip(("mlx", "plain"), sources, strict=True):
        convert(source, tmp_path / name, dtype="f32")
    assert contents(tmp_path / "mlx") == contents(tmp_path / "plain")


def test_it_is_rounded_again_where_that_is_asked_for(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=r"\(MLX4_BF16 to int4\).*--requantise does so"):
        convert(sources[0], tmp_path / "found")
    convert(sources[0], tmp_path / "found", requantise=True)
    manifest = read_manifest(tmp_path / "found")
    assert format_requantised(manifest.source) == "requantised from MLX4_BF16, MLX8_BF16"
    assert manifest.spec.dtype == "int4"
    spec = manifest.spec
    convert(sources[1], tmp_path / "expected", dtype="int4", resident_dtype=spec.resident_dtype)
    assert contents(tmp_path / "found") == contents(tmp_path / "expected")
    assert verify(tmp_path / "found").ok
    torn = split(sources[0], tmp_path / "source", lambda name: name.endswith("biases"))
    convert_shards(LocalShards(torn), tmp_path / "shards", requantise=True)
    assert contents(tmp_path / "shards") == contents(tmp_path / "found")


@pytest.mark.parametrize(
    ("ending", "how", "match"),
    [
        ("biases", None, r"switch_mlp.up_proj.biases absent, which do not fit"),
        ("scales", lambda t: t[:3], r"scales is bf16 \[3, 96, 2\]"),
        ("scales", lambda t: t.float(), r"scales is f32"),
        ("weight", lambda t: t[..., :4], r"do not fit u32 \[4, 96, 4\] of MLX in 4 bits"),
        ("scales", lambda t: t * torch.inf, "NaN or infinity"),
    ],
)
def test_numbers_that_do_not_fit(
    sources: tuple[Path, Path], tmp_path: Path, ending: str, how: Any, match: str
) -> None:
    directory, name = tmp_path / "source", f"{STACK}.{ending}"
    directory.mkdir()
    tensors = load_file(sources[0] / "model.safetensors")
    changed = tensors.pop(name)
    if how is not None:
        tensors[name] = how(changed).contiguous()
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((sources[0] / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config))
    refuse(directory, TensorMismatch, match, requantise=True)


def test_a_description_by_the_settings_alone(sources: tuple[Path, Path]) -> None:
    assert describe(sources[0], requantise=True).dtype == "int4"


def test_numbers_without_a_configuration(sources: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copy(sources[0] / "model.safetensors", tmp_path)
    with pytest.raises(TensorMismatch, match="of MLX in None bits"), open_checkpoint(tmp_path):
        pass
