"""What the converter writes is what the checkpoint held."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, verify
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file

from flashllm.errors import UsageError
from flashllm.flash.layout import default_stride, read_header
from flashllm.flash.manifest import read_manifest
from flashllm.flash.tensor_table import tensor_table
from tests.support.checkpoints import CONFIG, all_bytes, random_tensors, write_checkpoint
from tests.support.tiny import save_opt, save_opt_bin, tiny_opt

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm with projections": {"do_layer_norm_before": False, "word_embed_proj_dim": 8},
    "untied": {"tie_word_embeddings": False},
    "no biases": {"enable_bias": False},
    "norms without weights": {"layer_norm_elementwise_affine": False},
    "one layer": {"num_hidden_layers": 1, "ffn_dim": 33},
}

OURS = {
    "decoder.embed_tokens": "embed",
    "decoder.embed_positions.weight": "embed.positions",
    "decoder.project_in": "embed.project_in",
    "decoder.project_out": "head.project_out",
    "lm_head": "head",
    "decoder.final_layer_norm": "final_norm",
    "decoder.layers.": "layers.",
    ".self_attn_layer_norm": ".attn_norm",
    ".final_layer_norm": ".ffn_norm",
    ".self_attn.out_proj": ".attn.o",
    ".self_attn.": ".attn.",
    "_proj.": ".",
    ".fc1": ".ffn.up",
    ".fc2": ".ffn.down",
}


def our_name(name: str) -> str:
    """The resident name that a tensor of the source should get."""
    name = name.removeprefix("model.")
    for theirs, ours in OURS.items():
        name = name.replace(theirs, ours)
    return name


def bundle(directory: Path, layer: int, index: int) -> bytes:
    """One bundle, found by the formula in docs/layout-v1.md and nothing of ours."""
    raw = (directory / "ffn.bundles").read_bytes()
    n_layers, bundles_per_layer, d_model = struct.unpack_from("<III", raw, 28)
    stride, bundle_bytes, data_offset = struct.unpack_from("<QQQ", raw, 40)
    assert layer < n_layers
    assert d_model > 0
    start = data_offset + (layer * bundles_per_layer + index) * stride
    return raw[start : start + bundle_bytes]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_weight_arrives_bit_equal(tmp_path: Path, variant: str) -> None:
    config = {**CONFIG, **VARIANTS[variant]}
    tensors = random_tensors(config)
    source = write_checkpoint(tmp_path / "source", tensors=tensors, **VARIANTS[variant])

    convert(source, tmp_path / "out")

    resident = load_file(tmp_path / "out" / "resident.safetensors")
    for name, values in tensors.items():
        if name.endswith(("fc1.weight", "fc2.weight")):
            continue
        np.testing.assert_array_equal(resident.pop(our_name(name)), values, err_msg=name)
    assert not resident
    for layer in range(config["num_hidden_layers"]):
        up = tensors[f"model.decoder.layers.{layer}.fc1.weight"]
        down = tensors[f"model.decoder.layers.{layer}.fc2.weight"]
        for index in range(config["ffn_dim"]):
            expected = up[index].tobytes() + down[:, index].tobytes()
            assert bundle(tmp_path / "out", layer, index) == expected, (layer, index)
    assert verify(tmp_path / "out").ok


@pytest.mark.parametrize("save", [save_opt, save_opt_bin])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_transformers_saves(tmp_path: Path, save: Any, dtype: torch.dtype) -> None:
    model = tiny_opt(hidden_size=36, word_embed_proj_dim=36, ffn_dim=83).to(dtype)
    source = save(model, tmp_path / "source")

    convert(source, tmp_path / "out", allow_pickle=True)

    resident = load_torch_file(tmp_path / "out" / "resident.safetensors")
    fc2 = {}
    for name, values in model.state_dict().items():
        if name.endswith("fc2.weight"):
            fc2[int(name.split(".")[3])] = values
        elif name not in ("lm_head.weight",) and not name.endswith("fc1.weight"):
            found = resident.pop(our_name(name))
            assert found.dtype == (torch.float32 if values.ndim == 1 else dtype)
            assert torch.equal(found, values.to(found.dtype)), name
    assert not resident
    row_bytes = 36 * dtype.itemsize
    for layer, values in fc2.items():
        for index in range(83):
            raw = bytearray(bundle(tmp_path / "out", layer, index)[row_bytes:])
            assert torch.equal(torch.frombuffer(raw, dtype=dtype), values[:, index])


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")

    convert(source, tmp_path / "first")
    convert(source, tmp_path / "second")

    assert all_bytes(tmp_path / "first") == all_bytes(tmp_path / "second")


def test_shards_and_prefix_change_no_weight(tmp_path: Path) -> None:
    convert(write_checkpoint(tmp_path / "whole"), tmp_path / "a")
    tensors = {
        name.removeprefix("model."): values for name, values in random_tensors(CONFIG).items()
    }
    convert(write_checkpoint(tmp_path / "parts", tensors=tensors, shards=3), tmp_path / "b")

    resident = [(tmp_path / name / "resident.safetensors").read_bytes() for name in "ab"]
    data = [(tmp_path / name / "ffn.bundles").read_bytes()[4096:] for name in "ab"]
    assert resident[0] == resident[1]
    assert data[0] == data[1]


def test_manifest_tells_what_the_source_was(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", flashllm_synthetic=True, eos_token_id=[3, 5])

    convert(source, tmp_path / "out", dtype="bf16")

    manifest = read_manifest(tmp_path / "out")
    assert manifest.name == "source"
    assert manifest.synthetic
    assert manifest.spec.eos_ids == (3, 5)
    assert manifest.spec.bos_id == 2
    assert manifest.spec.dtype == "bf16"
    assert manifest.source["overrides"] == {"dtype": "bf16"}
    assert set(manifest.source["files"]) == {"config.json", "model.safetensors"}
    expected = {*manifest.files, "manifest.json", "manifest.sha256"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected


def test_generation_config_goes_before_config(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [7], "top_k": 3}))

    convert(source, tmp_path / "out")

    spec = read_manifest(tmp_path / "out").spec
    assert (spec.bos_id, spec.eos_ids) == (2, (7,))


def test_a_tied_head_may_be_spelled_out_or_stand_alone(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    embedding = tensors["model.decoder.embed_tokens.weight"]
    both = write_checkpoint(tmp_path / "both", tensors={**tensors, "lm_head.weight": embedding})
    alone = {n: t for n, t in tensors.items() if n != "model.decoder.embed_tokens.weight"}
    head = write_checkpoint(tmp_path / "head", tensors={**alone, "lm_head.weight": embedding})
    convert(write_checkpoint(tmp_path / "plain"), tmp_path / "expected")
    expected = (tmp_path / "expected" / "resident.safetensors").read_bytes()

    for source in (both, head):
        convert(source, tmp_path / f"{source.name}-out")
        found = (tmp_path / f"{source.name}-out" / "resident.safetensors").read_bytes()
        assert found == expected


def test_final_norm_can_be_removed_and_leftovers_ignored(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    kept = {n: t for n, t in tensors.items() if not n.startswith("model.decoder.final_layer_norm")}
    kept["decoder.version"] = np.zeros(1, dtype=np.float32)
    source = write_checkpoint(tmp_path / "source", tensors=kept, _remove_final_layer_norm=True)

    convert(source, tmp_path / "out")

    spec = read_manifest(tmp_path / "out").spec
    assert not spec.final_norm
    resident = load_file(tmp_path / "out" / "resident.safetensors")
    assert set(resident) == set(tensor_table(spec))


@pytest.mark.parametrize(("bundle_bytes", "stride"), [
    (32768, 32768), (36352, 36864), (18176, 18432), (4608, 4608), (3072, 3072), (1024, 1024),
    (8704, 8704),
    (96, 512), (8192, 8192), (3641, 4096), (7281, 7680), (7282, 8192),
])  # fmt: skip
def test_stride(bundle_bytes: int, stride: int) -> None:
    assert default_stride(bundle_bytes) == stride


def test_snapshot_in_a_hugging_face_cache(tmp_path: Path) -> None:
    home = tmp_path / "models--some--thing"
    real = write_checkpoint(tmp_path / "real")
    (home / "blobs").mkdir(parents=True)
    snapshot = home / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for path in list(real.iterdir()):
        path.rename(home / "blobs" / f"hash-of-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/hash-of-{path.name}")

    convert(snapshot, tmp_path / "out")

    assert read_manifest(tmp_path / "out").name == "some/thing"
    assert verify(tmp_path / "out").ok


def test_what_the_id_of_the_bundles_depends_on(tmp_path: Path) -> None:
    """The settings, where the source's tensors lie, its configuration, the resident weights."""
    tensors = random_tensors(CONFIG)
    prefix = "model.decoder.layers"
    biased = {**tensors, f"{prefix}.1.fc1.bias": tensors[f"{prefix}.1.fc1.bias"] + 1}
    places = {f"{prefix}.{i}.fc1.weight": f"{prefix}.{1 - i}.fc1.weight" for i in range(2)}
    moved = {places.get(name, name): tensors[places.get(name, name)] for name in tensors}
    write_checkpoint(tmp_path / "source", tensors=tensors, unknown=1)
    write_checkpoint(tmp_path / "config", tensors=tensors, unknown=2)
    write_checkpoint(tmp_path / "biased", tensors=biased, unknown=1)
    write_checkpoint(tmp_path / "moved", tensors=moved, unknown=1)
    write_checkpoint(tmp_path / "shards", tensors=tensors, unknown=1, shards=2)
    # Sizes of files do not tell these from the source.
    for name in ("config", "biased", "moved"):
        for path in (tmp_path / name).iterdir():
            assert path.stat().st_size == (tmp_path / "source" / path.name).stat().st_size
    conversions: list[tuple[str, dict[str, Any]]] = [
        ("source", {}), ("source", {}), ("config", {}), ("biased", {}), ("moved", {}),
        ("shards", {}), ("source", {"dtype": "f32"}), ("source", {"dtype": "f16"}),
        ("source", {"resident_dtype": "f16"}),
    ]  # fmt: skip
    ids = []
    for number, (name, options) in enumerate(conversions):
        convert(tmp_path / name, tmp_path / f"out-{number}", **options)
        ids.append(read_header(tmp_path / f"out-{number}" / "ffn.bundles").file_id)
    assert ids[0] == ids[1]
    assert len(set(ids)) == len(ids) - 1


def test_matrices_of_several_types_need_a_choice(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    name = "model.decoder.layers.1.fc1.weight"
    tensors[name] = tensors[name].astype(np.float16)
    source = write_checkpoint(tmp_path / "source", tensors=tensors)
    with pytest.raises(UsageError, match="f16, f32"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", dtype="f32")
    up = np.frombuffer(bundle(tmp_path / "out", 1, 5)[: 12 * 4], dtype=np.float32)
    np.testing.assert_array_equal(up, tensors[name][5].astype(np.float32))
