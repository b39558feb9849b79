"""Checkpoints in int4 of GPTQ and of compressed-tensors: kept bit for bit, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, convert_shards, verify
from safetensors.torch import load_file, save_file

from flashllm.errors import FlashllmError, TensorMismatch, UnsupportedModel
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import read_manifest
from tests.support.compare import Oracle, check_prefill, oracle
from tests.support.local_shards import LocalShards, split
from tests.support.refused import refuse
from tests.support.tiny import rewrite_config, tiny

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "moe_intermediate_size": 96,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"},
            }
        },
        "ignore": ["lm_head"],
    },
}
Tensors = dict[str, torch.Tensor]


def groups_of(name: str, inputs: int) -> int:
    """Scales of a row: groups of 64 where they go, of 32, or one for all."""
    if ".k_proj" in name:
        return 1
    return inputs // (64 if inputs % 64 == 0 else 32)


def words(numbers: torch.Tensor) -> torch.Tensor:
    """Eight weights of the last dimension in a word, number j in bits 4j."""
    eight = numbers.reshape(*numbers.shape[:-1], -1, 8).long()
    found = (eight << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(found >= 1 << 31, found - (1 << 32), found).int()


def packed(form: str, stem: str, numbers: torch.Tensor, scales: torch.Tensor) -> Tensors:
    """The tensors that a matrix of numbers [out, in] and scales [out, groups] is stored as."""
    if form == "compressed":
        return {
            f"{stem}.weight_packed": words(numbers),
            f"{stem}.weight_scale": scales.bfloat16(),
            f"{stem}.weight_shape": torch.tensor(numbers.shape),
        }
    out, inputs = numbers.shape
    groups = scales.shape[1]
    return {
        f"{stem}.qweight": words(numbers).T.contiguous(),
        f"{stem}.scales": scales.half().T.contiguous(),
        f"{stem}.qzeros": torch.full((groups, out // 8), 0x77777777, dtype=torch.int32),
        f"{stem}.g_idx": torch.arange(inputs, dtype=torch.int32) // (inputs // groups),
    }


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, dict[str, Path]]:
    """A model of random numbers and scales, and checkpoints of it: plain, and in both forms."""
    root = tmp_path_factory.mktemp("int4")
    model = tiny("qwen3_moe", **SIZES)
    model.save_pretrained(root / "plain")
    tensors = load_file(root / "plain" / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    forms: dict[str, Tensors] = {form: {} for form in ("plain", *CONFIGS)}
    for name, tensor in tensors.items():
        if not name.endswith("_proj.weight"):
            for found in forms.values():
                found[name] = tensor.bfloat16()
            continue
        out, inputs = tensor.shape
        groups = groups_of(name, inputs)
        numbers = torch.randint(0, 16, (out, inputs), generator=generator)
        scales = (torch.rand(out, groups, generator=generator) / 32).bfloat16().float()
        values = (numbers - 8) * scales.repeat_interleave(inputs // groups, 1)
        forms["plain"][name] = values
        for form in CONFIGS:
            forms[form] |= packed(form, name.removesuffix(".weight"), numbers, scales)
    paths = {}
    for form, found in forms.items():
        paths[form] = root / form
        paths[form].mkdir(exist_ok=True)
        save_file(found, paths[form] / "model.safetensors", {"format": "pt"})
        if form in CONFIGS:
            (paths[form] / "config.json").write_text((root / "plain" / "config.json").read_text())
            rewrite_config(paths[form], {"quantization_config": CONFIGS[form]})
    whole = type(model).from_pretrained(paths["plain"], dtype=torch.float32)
    return oracle(whole.eval()), paths


def contents(directory: Path) -> tuple[bytes, bytes]:
    """What a converted model holds, without the header that names its source."""
    bundles = (directory / "ffn.bundles").read_bytes()[16384:]
    return bundles, (directory / "resident.safetensors").read_bytes()


def test_both_forms_hold_the_values_of_the_plain_one(
    sources: tuple[Oracle, dict[str, Path]], tmp_path: Path
) -> None:
    for form, path in sources[1].items():
        convert(path, tmp_path / form, dtype="f32")
    assert contents(tmp_path / "gptq") == contents(tmp_path / "plain")
    assert contents(tmp_path / "compressed") == contents(tmp_path / "plain")


def test_they_are_computed_with_as_they_are(
    sources: tuple[Oracle, dict[str, Path]], tmp_path: Path
) -> None:
    """Vectors are rounded to 14 bits in products with groups: hence the tolerance."""
    expected, paths = sources
    for form in CONFIGS:
        converted = tmp_path / form
        convert(paths[form], converted, resident_dtype="f32")
        assert read_manifest(converted).spec.dtype == "int4"
        assert "requantised" not in read_manifest(converted).source
        for length in (1, 70):
            check_prefill(expected, converted, length, tolerance=5e-3, select=None)
        assert verify(converted).ok
    assert contents(tmp_path / "gptq") == contents(tmp_path / "compressed")


def test_the_bytes_of_a_row(sources: tuple[Oracle, dict[str, Path]], tmp_path: Path) -> None:
    """Weight i and i + 16 of 32 share a byte; each 32 get the scale of their group."""
    convert(sources[1]["gptq"], tmp_path / "model", resident_dtype="f32")
    header = read_header(tmp_path / "model" / "ffn.bundles")
    raw = np.fromfile(tmp_path / "model" / "ffn.bundles", np.uint8)
    tensors = load_file(sources[1]["gptq"] / "model.safetensors")
    stem = "model.layers.1.mlp.experts.3.up_proj"
    column = tensors[f"{stem}.qweight"][:, 7].contiguous().numpy().view(np.uint8)
    numbers = np.stack([column & 15, column >> 4], -1).reshape(2, 32)
    expected = (numbers[:, :16] | numbers[:, 16:] << 4).ravel()
    place = header.offset(1, 3) + header.bundle_parts[0] + 7 * 36
    assert raw[place : place + 32].tolist() == expected.tolist()
    scale = tensors[f"{stem}.scales"][:, 7].numpy()
    assert raw[place + 32 : place + 36].view(np.float16).tolist() == [scale[0], scale[0]]


def test_shards_one_by_one(sources: tuple[Oracle, dict[str, Path]], tmp_path: Path) -> None:
    for form in CONFIGS:
        convert(sources[1][form], tmp_path / f"{form}-whole", resident_dtype="f32")
        directory = split(sources[1][form], tmp_path / form, lambda name: "layers.1" in name)
        shards = tmp_path / f"{form}-shards"
        convert_shards(LocalShards(directory), shards, resident_dtype="f32")
        assert contents(shards) == contents(tmp_path / f"{form}-whole")


def changed(source: Path, directory: Path, damage: Callable[[Tensors], Any]) -> Path:
    directory.mkdir()
    tensors = load_file(source / "model.safetensors")
    damage(tensors)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text((source / "config.json").read_text())
    return directory


STEM = "model.layers.0.mlp.experts.2.down_proj"


def change(ending: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    name = f"{STEM}.{ending}"
    return lambda tensors: tensors.update({name: how(tensors[name].clone()).contiguous()})


def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def set_first(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return set_first


def also(ending: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({f"{STEM}.{ending}": torch.zeros(3)})


@pytest.mark.parametrize(
    ("form", "damage", "match"),
    [
        ("gptq", lambda t: t.pop(f"{STEM}.scales"), r"down_proj.scales is absent"),
        ("gptq", lambda t: t.pop(f"{STEM}.qzeros"), r"down_proj.qzeros is absent"),
        ("gptq", change("scales", lambda t: t[:2]), r"scales is f16 \[2, 64\]"),
        ("gptq", change("scales", lambda t: t[:, :5]), r"scales is f16 \[3, 5\]"),
        ("gptq", change("scales", lambda t: t.float()), "scales is f32"),
        ("gptq", change("qweight", lambda t: t[:-1]), r"does not fit qweight \[11, 64\]"),
        ("gptq", change("qzeros", lambda t: t[:2]), r"qzeros is i32 \[2, 8\]"),
        ("gptq", change("qzeros", first(0x77777778)), r"down_proj.qzeros: zero points other than"),
        ("gptq", change("g_idx", first(1)), r"g_idx: the inputs are not in order"),
        ("gptq", change("g_idx", lambda t: t[1:]), r"g_idx is i32 \[95\]"),
        ("gptq", change("scales", first(float("inf"))), "NaN or infinity"),
        ("gptq", also("weight"), r"down_proj.weight is there, and .*qweight too"),
        ("compressed", lambda t: t.pop(f"{STEM}.weight_scale"), "weight_scale is absent"),
        ("compressed", change("weight_scale", lambda t: t[:, :2]), r"_scale is bf16 \[64, 2\]"),
        ("compressed", change("weight_scale", lambda t: t.short()), "weight_scale is i16"),
        ("compressed", change("weight_scale", first(1e-6)), "f16, which does not hold 9.98"),
        ("compressed", change("weight_scale", first(float("nan"))), "NaN or infinity"),
        ("compressed", also("weight_zero_point"), "weights with zero points"),
        ("compressed", also("weight_g_idx"), "weights with inputs in another order"),
        ("compressed", lambda t: t.pop(f"{STEM}.weight_packed"), "missing: .*2.down_proj.weight"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit(
    sources: tuple[Oracle, dict[str, Path]],
    tmp_path: Path,
    form: str,
    damage: Callable[[Tensors], Any],
    match: str,
) -> None:
    refuse(changed(sources[1][form], tmp_path / "source", damage), TensorMismatch, match)


def test_a_scale_of_zeros_may_be_any(
    sources: tuple[Oracle, dict[str, Path]], tmp_path: Path
) -> None:
    """A row of zeros has the least scale that its writer allows, which f16 may not hold."""

    def damage(tensors: Tensors) -> None:
        change("weight_scale", first(2e-7))(tensors)
        tensors[f"{STEM}.weight_packed"][0, :4] = -0x77777778  # 0x88888888

    source = changed(sources[1]["compressed"], tmp_path / "source", damage)
    convert(source, tmp_path / "model", resident_dtype="f32")
    header = read_header(tmp_path / "model" / "ffn.bundles")
    raw = np.fromfile(tmp_path / "model" / "ffn.bundles", np.uint8)
    place = header.offset(0, 2) + sum(header.bundle_parts[:2])
    assert raw[place : place + 16].tolist() == [0x88] * 16
    assert raw[place + 48 : place + 50].tolist() == [0, 0]


def test_the_order_of_inputs_may_be_left_out(
    sources: tuple[Oracle, dict[str, Path]], tmp_path: Path
) -> None:
    def damage(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".g_idx")]:
            del tensors[name]

    convert(
        changed(sources[1]["gptq"], tmp_path / "source", damage), tmp_path / "model", dtype="f32"
    )
    convert(sources[1]["gptq"], tmp_path / "whole", dtype="f32")
    assert contents(tmp_path / "model") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("form", "keys", "value", "match"),
    [
        ("gptq", ["bits"], 8, "has bits '8', and not 4"),
        ("gptq", ["bits"], True, "has bits 'True'"),
        ("gptq", ["sym"], False, "has sym 'False'"),
        ("gptq", ["desc_act"], True, "has desc_act 'True'"),
        ("gptq", ["checkpoint_format"], "gptq_v2", "has checkpoint_format 'gptq_v2'"),
        ("compressed", ["format"], "nvfp4-pack-quantized", "has format 'nvfp4"),
        ("compressed", ["config_groups"], {}, "has no config_groups"),
        ("compressed", ["config_groups", "group_0"], 3, "has no config_groups"),
        ("compressed", ["config_groups", "group_0", "weights"], None, "a group without weights"),
        ("compressed", ["config_groups", "group_0", "weights", "symmetric"], False, "symmetric"),
        ("compressed", ["config_groups", "group_0", "weights", "type"], "float", "has type"),
        ("compressed", ["config_groups", "group_0", "weights", "actorder"], "group", "actorder"),
        ("compressed", ["config_groups", "group_0", "input_activations"], {}, "input_activations"),
    ],
)
def test_other_settings_are_refused(
    sources: tuple[Oracle, dict[str, Path]],
    tmp_path: Path,
    form: str,
    keys: list[str],
    value: Any,
    match: str,
) -> None:
    source = changed(sources[1][form], tmp_path / "source", lambda tensors: None)
    config = json.loads((source / "config.json").read_text())
    place = config["quantization_config"]
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (source / "config.json").write_text(json.dumps(config))
    refuse(source, UnsupportedModel, f"quantization_config .*{match}")


def test_neurons_would_be_rounded_again(
    sources: tuple[Oracle, dict[str, Path]], tmp_path: Path
) -> None:
    """A dense model's down projection lies turned round, in groups of its own."""
    model = tiny("qwen3", hidden_size=64, intermediate_size=96, num_key_value_heads=2, head_dim=16)
    source = tmp_path / "source"
    model.save_pretrained(source)
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        numbers = torch.randint(0, 16, tensors.pop(name).shape)
        scales = torch.full((numbers.shape[0], numbers.shape[1] // 32), 0.02)
        tensors |= packed("gptq", name.removesuffix(".weight"), numbers, scales)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    rewrite_config(source, {"quantization_config": CONFIGS["gptq"]})
    with pytest.raises(FlashllmError, match=r"rounded a second time: .*columns of a down"):
        convert(source, tmp_path / "model")
    convert(source, tmp_path / "model", requantise=True)
    assert read_manifest(tmp_path / "model").source["requantised"] == ["Q4_0"]
