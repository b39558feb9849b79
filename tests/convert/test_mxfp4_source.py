"""Checkpoints whose experts are in mxfp4: kept bit for bit, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from flashllm.convert import convert, convert_shards, describe, verify
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from flashllm.errors import DownloadFailed, FlashllmError, TensorMismatch, UnsupportedModel
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import read_manifest
from flashllm.flash.unfinished import pulled_path
from tests.support.compare import Oracle, check_prefill, check_steps, oracle
from tests.support.local_shards import LocalShards, split
from tests.support.refused import refuse
from tests.support.tiny import rewrite_config, tiny

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "sliding_window": 9,
}
STACKS = {"gate_up_proj": (5, 192, 2, 16), "down_proj": (5, 64, 3, 16)}
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, Path]:
    """A checkpoint with random blocks, and a model of transformers with the same values."""
    directory = tmp_path_factory.mktemp("mxfp4") / "source"
    model = tiny("gpt_oss", **SIZES)
    generator = torch.Generator().manual_seed(4)
    packed: Tensors = {}
    with torch.no_grad():
        for layer, block in enumerate(model.model.layers):
            for name, shape in STACKS.items():
                blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
                scales = torch.randint(119, 124, shape[:-1], generator=generator, dtype=torch.uint8)
                stack = f"model.layers.{layer}.mlp.experts.{name}"
                packed |= {f"{stack}_blocks": blocks, f"{stack}_scales": scales}
                values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
                getattr(block.mlp.experts, name).copy_(values)
        for name, parameter in model.named_parameters():
            if not name.endswith(("gate_up_proj", "down_proj")):
                parameter.copy_(parameter.bfloat16())
    model.save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if name.endswith(tuple(STACKS))]:
        del tensors[name]
    save_file(
        {name: value.bfloat16() for name, value in tensors.items()} | packed,
        directory / "model.safetensors",
    )
    rewrite_config(directory, {"quantization_config": {"quant_method": "mxfp4"}})
    return oracle(model), directory


def test_they_are_computed_with_as_they_are(source: tuple[Oracle, Path], tmp_path: Path) -> None:
    """Vectors are rounded to 14 bits in products with groups: hence the tolerance."""
    expected, directory = source
    convert(directory, tmp_path / "model")
    spec = read_manifest(tmp_path / "model").spec
    assert (spec.dtype, spec.resident_dtype) == ("mxfp4", "bf16")
    assert "requantised" not in read_manifest(tmp_path / "model").source
    for length in (1, 70):
        check_prefill(expected, tmp_path / "model", length, tolerance=5e-3, select=None)
    assert verify(tmp_path / "model").ok


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_wider_encodings_hold_the_same_values(
    source: tuple[Oracle, Path], tmp_path: Path, dtype: str
) -> None:
    expected, directory = source
    convert(directory, tmp_path / "model", dtype=dtype)
    check_prefill(expected, tmp_path / "model", 70, select=None)
    check_steps(expected, tmp_path / "model", None)


def test_the_bytes_of_a_row(source: tuple[Oracle, Path], tmp_path: Path) -> None:
    """Weight i and i + 16 of a group share a byte; scales follow the numbers of a row."""
    _, directory = source
    convert(directory, tmp_path / "model")
    header = read_header(tmp_path / "model" / "ffn.bundles")
    raw = np.fromfile(tmp_path / "model" / "ffn.bundles", np.uint8)
    tensors = load_file(directory / "model.safetensors")
    stack = "model.layers.1.mlp.experts"
    blocks = tensors[f"{stack}.gate_up_proj_blocks"].numpy()[3, 2 * 7 + 1]  # row 7 of up
    halves = np.stack([blocks & 15, blocks >> 4], -1).reshape(2, 32)
    expected = (halves[:, :16] | halves[:, 16:] << 4).ravel()
    place = header.offset(1, 3) + header.bundle_parts[0] + 7 * 34
    assert raw[place : place + 32].tolist() == expected.tolist()
    scales = tensors[f"{stack}.gate_up_proj_scales"].numpy()[3, 15]
    assert raw[place + 32 : place + 34].tolist() == scales.tolist()
    biases = header.offset(1, 3) + sum(header.bundle_parts[:3])
    found = raw[biases : biases + header.bundle_parts[3]].view(np.float32)
    bias = tensors[f"{stack}.gate_up_proj_bias"].float().numpy()
    assert found.tolist() == bias[3, ::2].tolist()


def test_blocks_of_a_row_may_be_one_dimension(source: tuple[Oracle, Path], tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    tensors = load_file(source[1] / "model.safetensors")
    flat = {n: t.flatten(2) if n.endswith("_blocks") else t for n, t in tensors.items()}
    save_file(flat, tmp_path / "flat" / "model.safetensors")
    (tmp_path / "flat" / "config.json").write_text((source[1] / "config.json").read_text())
    found = []
    for directory in (source[1], tmp_path / "flat"):
        convert(directory, tmp_path / f"{directory.name}-converted")
        bundles = tmp_path / f"{directory.name}-converted" / "ffn.bundles"
        found.append(bundles.read_bytes()[16384:])
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_a_second_rounding_is_refused_unless_asked_for(
    source: tuple[Oracle, Path], tmp_path: Path, dtype: str
) -> None:
    convert(source[1], tmp_path / "model", dtype=dtype, requantise=True)
    assert read_manifest(tmp_path / "model").source["requantised"] == ["MXFP4"]
    with pytest.raises(UnsupportedModel, match=r"rounded a second time: .*MXFP4 to"):
        convert(source[1], tmp_path / "other", dtype=dtype)


BLOCKS, SCALES = (f"model.layers.0.mlp.experts.down_proj_{part}" for part in ("blocks", "scales"))


def change(name: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: how(tensors[name]).contiguous()})


def not_a_number(scales: torch.Tensor) -> torch.Tensor:
    scales[2, 40, 1] = 255
    return scales


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda tensors: tensors.pop(SCALES), "down_proj_scales is absent"),
        (lambda tensors: tensors.pop(BLOCKS), "missing: .*down_proj_blocks"),
        (change(SCALES, lambda t: t[:, :, :2]), r"down_proj_scales is u8 \[5, 64, 2\]"),
        (change(SCALES, lambda t: t.to(torch.int8)), "down_proj_scales is i8"),
        (change(BLOCKS, lambda t: t[..., :8]), r"down_proj_blocks, which is \[5, 64, 3, 8\]"),
        (change(BLOCKS, lambda t: t[0, 0, 0]), r"down_proj_blocks, which is \[16\]"),
        (change(SCALES, not_a_number), "NaN or infinity in row 168"),
    ],
)
def test_blocks_that_do_not_fit(
    source: tuple[Oracle, Path], tmp_path: Path, damage: Callable[[Tensors], Any], match: str
) -> None:
    (tmp_path / "source").mkdir()
    tensors = load_file(source[1] / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    config = (source[1] / "config.json").read_text()
    (tmp_path / "source" / "config.json").write_text(config)
    refuse(tmp_path / "source", TensorMismatch, match)


@pytest.mark.parametrize("value", [{"quant_method": "bitsandbytes"}, {"bits": 4}, "mxfp4", [1]])
def test_other_quantised_weights_are_refused(
    source: tuple[Oracle, Path], tmp_path: Path, value: Any
) -> None:
    (tmp_path / "source").mkdir()
    config = json.loads((source[1] / "config.json").read_text()) | {"quantization_config": value}
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FlashllmError, match=r"quantization_config is set .*supported are"):
        convert(tmp_path / "source", tmp_path / "model")


@pytest.mark.parametrize("keys", [("quantization",), ("quantization", "quantization_config")])
def test_weights_of_mlx_in_other_bits_are_refused_with_the_reason(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    values = {key: {"group_size": 64, "bits": 3} for key in keys}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe"} | values))
    with pytest.raises(UnsupportedModel, match=r"quantization is that of Apple's MLX, in 3 bits; "):
        describe(tmp_path)


def is_scales(name: str) -> bool:
    return name.endswith("_scales")


def test_checkpoints_in_several_files(source: tuple[Oracle, Path], tmp_path: Path) -> None:
    """Whole, and one by one; also where numbers and scales are in different ones."""
    convert(source[1], tmp_path / "expected")
    expected = (tmp_path / "expected" / "ffn.bundles").read_bytes()[16384:]
    torn = split(source[1], tmp_path / "torn", is_scales)
    convert(torn, tmp_path / "of-torn")
    assert (tmp_path / "of-torn" / "ffn.bundles").read_bytes()[16384:] == expected
    for number, is_second in enumerate((is_scales, lambda name: not is_scales(name))):
        # As an interrupted one goes on: the first file has come and gone before the second does.
        torn = split(source[1], tmp_path / f"torn-{number}", is_second)
        shards, target = LocalShards(torn), tmp_path / f"of-torn-{number}"
        shards.fail_at = "model-2.safetensors"
        with pytest.raises(DownloadFailed):
            convert_shards(shards, target)
        kept = list(pulled_path(target).glob("parts/*"))
        assert len(kept) == 2 * 2
        shards.fail_at = None
        convert_shards(shards, target)
        assert (target / "ffn.bundles").read_bytes()[16384:] == expected
        assert (shards.fetched, shards.most_here) == (
            ["model-1.safetensors", "model-2.safetensors"],
            1,
        )
        assert not pulled_path(target).exists()
    layers = split(source[1], tmp_path / "layers", lambda n: n.endswith(("_scales", "_blocks")))
    convert_shards(LocalShards(layers), tmp_path / "of-shards")
    assert (tmp_path / "of-shards" / "ffn.bundles").read_bytes()[16384:] == expected
    assert verify(tmp_path / "of-shards").ok


def gguf_blocks(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Blocks of GGUF, [..., 17 bytes a group], of those of transformers."""
    halves = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    numbers = halves[..., :16] | halves[..., 16:] << 4
    found = np.concatenate([scales[..., None], numbers], -1)
    return np.ascontiguousarray(found.reshape(*found.shape[:-2], -1))


def write_gguf(source: Path, path: Path) -> None:
    """The same model as llama.cpp's converter writes it."""
    config = json.loads((source / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("_scales") or ".experts." in name:
            continue
        if name.endswith(".sinks"):
            theirs = f"blk.{name.split('.')[2]}.attn_sinks.weight"
        else:
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or ""
        plain = tensor.ndim == 1 or ".router." in name
        bits = tensor.float().numpy() if plain else tensor.view(torch.int16).numpy()
        kind = gguf.GGMLQuantizationType.F32 if plain else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(theirs, bits if plain else bits.view(np.uint8), raw_dtype=kind)
    for layer in range(config["num_hidden_layers"]):
        stack = f"model.layers.{layer}.mlp.experts"
        parts = {"gate": ("gate_up_proj", 0, 2), "up": ("gate_up_proj", 1, 2)}
        for ours, (theirs, first, step) in (parts | {"down": ("down_proj", 0, 1)}).items():
            blocks, scales, bias = (
                tensors[f"{stack}.{theirs}_{part}"][:, first::step]
                for part in ("blocks", "scales", "bias")
            )
            name = f"blk.{layer}.ffn_{ours}_exps"
            writer.add_tensor(
                f"{name}.weight",
                gguf_blocks(blocks.numpy(), scales.numpy()),
                raw_dtype=gguf.GGMLQuantizationType.MXFP4,
            )
            writer.add_tensor(f"{name}.bias", bias.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_of_the_same_model_becomes_the_same_files(
    source: tuple[Oracle, Path], tmp_path: Path
) -> None:
    write_gguf(source[1], tmp_path / "model.gguf")
    specs, files = [], []
    for path in (source[1], tmp_path / "model.gguf"):
        converted = tmp_path / f"{path.name}-converted"
        convert(path, converted, resident_dtype="bf16")
        bundles = (converted / "ffn.bundles").read_bytes()[16384:]
        files.append((bundles, (converted / "resident.safetensors").read_bytes()))
        specs.append(read_manifest(converted).spec)
    assert specs[0] == specs[1]
    assert files[0] == files[1]
