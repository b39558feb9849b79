"""Checkpoints of AWQ: bytes hold their weights exactly, four bits only if that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, convert_shards, describe, verify
from safetensors.torch import load_file, save_file

from flashllm.core.numpy_twin.rows import decode
from flashllm.dtypes import row_bytes
from flashllm.errors import TensorMismatch, UnsupportedModel
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import format_requantised, read_manifest
from tests.support.local_shards import LocalShards, split
from tests.support.refused import refuse
from tests.support.tiny import rewrite_config, tiny

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "moe_intermediate_size": 96,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
STEM = "model.layers.0.mlp.experts.2.down_proj"
Tensors = dict[str, torch.Tensor]


def in_words(numbers: np.ndarray) -> torch.Tensor:
    """[lines, columns] in words of eight: columns 0, 2, 4, 6, 1, 3, 5 and 7 from the lowest on."""
    words = np.zeros((len(numbers), numbers.shape[1] // 8), np.uint32)
    for word in range(words.shape[1]):
        for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            words[:, word] |= numbers[:, 8 * word + column].astype(np.uint32) << (4 * place)
    return torch.from_numpy(words.view(np.int32))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of AWQ, and a plain one with the same values in f32."""
    root = tmp_path_factory.mktemp("awq")
    tiny("qwen3_moe", **SIZES).save_pretrained(root / "plain")
    generator = np.random.default_rng(6)
    awq: Tensors = {}
    plain: Tensors = {}
    for name, tensor in load_file(root / "plain" / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            awq[name] = plain[name] = tensor.bfloat16()
            continue
        out, inputs = tensor.shape
        groups = inputs // (64 if inputs % 64 == 0 else 32)
        numbers = generator.integers(0, 16, (inputs, out))
        zeros = generator.integers(0, 16, (groups, out))
        scales = (generator.random((groups, out)) / 32).astype(np.float16)
        stem = name.removesuffix(".weight")
        awq[f"{stem}.qweight"], awq[f"{stem}.qzeros"] = in_words(numbers), in_words(zeros)
        awq[f"{stem}.scales"] = torch.from_numpy(scales)
        above = numbers - zeros.repeat(inputs // groups, axis=0)
        values = above.astype(np.float32) * scales.astype(np.float32).repeat(inputs // groups, 0)
        plain[name] = torch.from_numpy(np.ascontiguousarray(values.T))
    for form, tensors in (("plain", plain), ("awq", awq)):
        (root / form).mkdir(exist_ok=True)
        save_file(tensors, root / form / "model.safetensors", {"format": "pt"})
    (root / "awq" / "config.json").write_text((root / "plain" / "config.json").read_text())
    rewrite_config(root / "awq", {"quantization_config": CONFIG})
    return root / "awq", root / "plain"


def contents(directory: Path) -> tuple[bytes, bytes]:
    bundles = (directory / "ffn.bundles").read_bytes()[16384:]
    return bundles, (directory / "resident.safetensors").read_bytes()


def test_f32_holds_the_values_of_the_plain_one(sources: tuple[Path, Path], tmp_path: Path) -> None:
    for name, source in zip(("awq", "plain"), sources, strict=True):
        convert(source, tmp_path / name, dtype="f32")
    assert contents(tmp_path / "awq") == contents(tmp_path / "plain")


def test_bytes_hold_numbers_less_their_zero_points(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    convert(sources[0], tmp_path / "model", resident_dtype="f32")
    manifest = read_manifest(tmp_path / "model")
    assert (manifest.spec.dtype, format_requantised(manifest.source)) == ("int8", "")
    header = read_header(tmp_path / "model" / "ffn.bundles")
    raw = np.fromfile(tmp_path / "model" / "ffn.bundles", np.uint8)
    plain = load_file(sources[1] / "model.safetensors")
    for expert in range(4):
        place = header.offset(1, expert)
        for matrix, out, inputs in (("gate", 96, 64), ("up", 96, 64), ("down", 64, 96)):
            nbytes = out * row_bytes("int8", inputs)
            own = raw[place : place + nbytes].reshape(out, -1)
            wanted = plain[f"model.layers.1.mlp.experts.{expert}.{matrix}_proj.weight"].numpy()
            assert np.array_equal(decode(own, "int8", inputs), wanted)
            place += nbytes
    assert verify(tmp_path / "model").ok


def test_four_bits_have_to_be_asked_for(sources: tuple[Path, Path], tmp_path: Path) -> None:
    wanted = r"\(AWQ to int4\) and 21 more, where no group holds the same values.*--requantise"
    with pytest.raises(UnsupportedModel, match=wanted):
        convert(sources[0], tmp_path / "model", dtype="int4", resident_dtype="f32")
    convert(sources[0], tmp_path / "found", dtype="int4", requantise=True)
    convert(sources[1], tmp_path / "expected", dtype="int4")
    assert contents(tmp_path / "found") == contents(tmp_path / "expected")
    manifest = read_manifest(tmp_path / "found")
    assert format_requantised(manifest.source) == "requantised from AWQ"


def test_numbers_and_zero_points_in_different_files(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    convert(sources[0], tmp_path / "whole", resident_dtype="f32")
    torn = split(sources[0], tmp_path / "source", lambda name: name.endswith("qzeros"))
    convert_shards(LocalShards(torn), tmp_path / "shards", resident_dtype="f32")
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")


def change(ending: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    name = f"{STEM}.{ending}"
    return lambda tensors: tensors.update({name: how(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda t: t.pop(f"{STEM}.qzeros"), "qzeros is absent"),
        (change("qzeros", lambda t: t[:2]), r"qzeros is i32 \[2, 8\]"),
        (change("scales", lambda t: t.float()), r"scales f32 \[3, 64\]"),
        (change("scales", lambda t: t[:2]), r"scales f16 \[2, 64\], which do not fit qweight"),
        (change("scales", lambda t: t * torch.inf), "NaN or infinity"),
        (change("qweight", lambda t: t[:-1]), r"do not fit qweight \[95, 8\]"),
    ],
)
def test_numbers_that_do_not_fit(
    sources: tuple[Path, Path], tmp_path: Path, damage: Callable[[Tensors], Any], match: str
) -> None:
    directory = tmp_path / "source"
    directory.mkdir()
    tensors = load_file(sources[0] / "model.safetensors")
    damage(tensors)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text((sources[0] / "config.json").read_text())
    refuse(directory, TensorMismatch, match)


@pytest.mark.parametrize(("key", "value"), [("bits", 8), ("version", "gemv")])
def test_other_settings_are_refused(
    sources: tuple[Path, Path], tmp_path: Path, key: str, value: object
) -> None:
    directory = tmp_path / "source"
    directory.mkdir()
    config = json.loads((sources[0] / "config.json").read_text())
    config["quantization_config"][key] = value
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").symlink_to(sources[0] / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"has {key} '{value}', and not"):
        describe(directory)
