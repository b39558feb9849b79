"""Fused, transposed and shifted tensors arrive where they should; overrides are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, describe, verify
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file

from flashllm.cli.main import main
from flashllm.flash.manifest import read_manifest
from tests.support.checkpoints import all_bytes
from tests.support.compare import check_prefill, oracle
from tests.support.tiny import rewrite_config, tiny
from tests.tools.test_convert import bundle

GATED: dict[str, Any] = {"intermediate_size": 20, "num_key_value_heads": 2}
NEMOTRON: dict[str, Any] = {**GATED, "num_attention_heads": 3, "num_key_value_heads": 1}
HEADS, DIMS = 6, 6


def save(directory: Path, model_type: str, **changes: Any) -> dict[str, np.ndarray]:
    """A checkpoint, and its tensors."""
    tiny(model_type, **changes).save_pretrained(directory)
    return load_file(directory / "model.safetensors")


def resident(directory: Path) -> dict[str, np.ndarray]:
    return load_file(directory / "resident.safetensors")


class Warnings:
    """What the user was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def start(self, phase: str, total_bytes: int) -> None: ...
    def advance(self, nbytes: int) -> None: ...
    def finish(self) -> None: ...
    def warn(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(
    ("changes", "kv_heads"),
    [
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 3}, 3),
        ({"multi_query": True}, 1),
        ({"multi_query": False}, HEADS),
    ],
    ids=str,
)
def test_fused_projections_in_each_layout(
    tmp_path: Path, changes: dict[str, Any], kv_heads: int
) -> None:
    tensors = save(tmp_path / "source", "falcon", bias=True, ffn_hidden_size=20, **changes)

    convert(tmp_path / "source", tmp_path / "out")

    found = resident(tmp_path / "out")
    for layer in range(2):
        for leaf in ("weight", "bias"):
            name = f"transformer.h.{layer}.self_attention.query_key_value.{leaf}"
            fused = tensors[name].reshape(kv_heads, HEADS // kv_heads + 2, DIMS, -1)
            parts = {"q": fused[:, :-2], "k": fused[:, -2], "v": fused[:, -1]}
            for part, values in parts.items():
                ours = found[f"layers.{layer}.attn.{part}.{leaf}"]
                np.testing.assert_array_equal(ours, values.reshape(ours.shape))
    assert read_manifest(tmp_path / "out").spec.n_kv_heads == kv_heads


def test_stacked_projections(tmp_path: Path) -> None:
    tensors = save(tmp_path / "source", "phi3", **GATED)

    convert(tmp_path / "source", tmp_path / "out")

    found = resident(tmp_path / "out")
    for layer in range(2):
        fused = tensors[f"model.layers.{layer}.self_attn.qkv_proj.weight"]
        for part, rows in (("q", slice(0, 36)), ("k", slice(36, 48)), ("v", slice(48, 60))):
            np.testing.assert_array_equal(found[f"layers.{layer}.attn.{part}.weight"], fused[rows])
        both = tensors[f"model.layers.{layer}.mlp.gate_up_proj.weight"]
        down = tensors[f"model.layers.{layer}.mlp.down_proj.weight"]
        for index in range(20):
            rows = [both[index], both[20 + index], down[:, index]]
            assert bundle(tmp_path / "out", layer, index) == np.concatenate(rows).tobytes()


def test_a_sparse_gate_stays_in_memory(tmp_path: Path) -> None:
    tensors = save(tmp_path / "source", "phi3", hidden_act="relu", **GATED)

    convert(tmp_path / "source", tmp_path / "out")

    found = resident(tmp_path / "out")
    for layer in range(2):
        both = tensors[f"model.layers.{layer}.mlp.gate_up_proj.weight"]
        down = tensors[f"model.layers.{layer}.mlp.down_proj.weight"]
        np.testing.assert_array_equal(found[f"layers.{layer}.ffn.gate.weight"], both[:20])
        expected = np.concatenate([both[20 + 7], down[:, 7]]).tobytes()
        assert bundle(tmp_path / "out", layer, 7) == expected
    assert verify(tmp_path / "out").ok


def test_norms_that_scale_by_one_more(tmp_path: Path) -> None:
    """Added in f32 even where the checkpoint is narrower: 1 + 2^-9 is no bf16."""
    model = tiny("nemotron", **NEMOTRON).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "source")
    tensors = load_torch(tmp_path / "source" / "model.safetensors")
    tensors["model.norm.weight"][0] = 2**-9
    save_file(tensors, tmp_path / "source" / "model.safetensors", {"format": "pt"})

    convert(tmp_path / "source", tmp_path / "out")

    found = load_torch(tmp_path / "out" / "resident.safetensors")
    assert found["final_norm.weight"][0] == 1 + 2**-9
    for ours, theirs in (
        ("final_norm", "model.norm"),
        ("layers.1.attn_norm", "model.layers.1.input_layernorm"),
        ("layers.1.ffn_norm", "model.layers.1.post_attention_layernorm"),
    ):
        assert torch.equal(found[f"{ours}.weight"], tensors[f"{theirs}.weight"].float() + 1)
        assert torch.equal(found[f"{ours}.bias"], tensors[f"{theirs}.bias"].float())


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("falcon", {"ffn_hidden_size": 20}), ("phi3", GATED), ("nemotron", NEMOTRON)],
)
def test_small_blocks_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, changes: dict[str, Any]
) -> None:
    save(tmp_path / "source", model_type, **changes)
    convert(tmp_path / "source", tmp_path / "large")
    for module in ("families.transforms", "output.writing"):
        monkeypatch.setattr(f"flashllm.convert.{module}.BLOCK_BYTES", 52)

    convert(tmp_path / "source", tmp_path / "small")

    assert all_bytes(tmp_path / "small") == all_bytes(tmp_path / "large")


@pytest.mark.parametrize("large", [True, False])
def test_first_uploads_have_other_keys(tmp_path: Path, large: bool) -> None:
    """Neither the architecture of the larger ones nor the head's tie was a key then."""
    changes = {"new_decoder_architecture": True, "num_kv_heads": 2} if large else {}
    model = tiny("falcon", ffn_hidden_size=144, **changes)
    model.save_pretrained(tmp_path / "source")
    old = {
        "model_type": "RefinedWeb" if large else "RefinedWebModel",
        "vocab_size": 97,
        "hidden_size": 36,
        "n_layer": 2,
        "n_head": 6,
        "layer_norm_epsilon": 1e-5,
        "alibi": False,
        "apply_residual_connection_post_layernorm": False,
        "attention_dropout": 0.0,
        "bias": False,
        "parallel_attn": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | ({"n_head_kv": 2} if large else {"multi_query": True})
    (tmp_path / "source" / "config.json").write_text(json.dumps(old))

    convert(tmp_path / "source", tmp_path / "out")

    spec = read_manifest(tmp_path / "out").spec
    assert (spec.activation, spec.max_positions, spec.shared_norm) == ("gelu", 2048, not large)
    check_prefill(oracle(model), tmp_path / "out", 30)


def test_an_activation_may_be_given(tmp_path: Path) -> None:
    """As for a model that was trained on with relu and whose configuration was never changed."""
    model = tiny("falcon", ffn_hidden_size=20, activation="relu")
    model.save_pretrained(tmp_path / "ReluThing")
    rewrite_config(tmp_path / "ReluThing", {}, remove=("activation",))
    told = Warnings()

    convert(tmp_path / "ReluThing", tmp_path / "doubted", progress=told)
    assert read_manifest(tmp_path / "doubted").spec.activation == "gelu"
    assert any("its name says relu" in text and "--act relu" in text for text in told.texts)

    told = Warnings()
    convert(tmp_path / "ReluThing", tmp_path / "out", act="relu", progress=told)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.spec.activation == "relu"
    assert manifest.source["overrides"] == {"act": "relu"}
    assert not any("name" in text or "never zero" in text for text in told.texts)
    check_prefill(oracle(model), tmp_path / "out", 30)

    told = Warnings()
    (tmp_path / "ReluThing").rename(tmp_path / "thing")
    convert(tmp_path / "thing", tmp_path / "dense", progress=told)
    assert any("gelu is never zero" in text and "plan" in text for text in told.texts)


@pytest.mark.parametrize(
    ("hidden_act", "options", "expected"),
    [
        ("relu", {}, ("relu", 0.0)),
        ("relu", {"fatrelu_threshold": 0.25}, ("fatrelu", 0.25)),
        ("fatrelu", {}, ("fatrelu", 0.5)),
        ("fatrelu", {"fatrelu_threshold": 0.25}, ("fatrelu", 0.25)),
        ("fatrelu", {"fatrelu_threshold": 0.0}, ("relu", 0.0)),
        ("fatrelu", {"act": "relu"}, ("relu", 0.0)),
        ("silu", {"act": "relu", "fatrelu_threshold": 0.25}, ("fatrelu", 0.25)),
        ("silu", {"act": "fatrelu_0.125"}, ("fatrelu", 0.125)),
        ("silu", {"act": "drelu"}, ("drelu", 0.0)),
        ("swish", {}, ("silu", 0.0)),
        ("gelu_new", {}, ("gelu_tanh", 0.0)),
        ("gelu_pytorch_tanh", {}, ("gelu_tanh", 0.0)),
        ("mish", {"act": "relu2"}, ("relu2", 0.0)),
    ],
)
def test_activations(
    tmp_path: Path, hidden_act: str, options: dict[str, Any], expected: tuple[str, float]
) -> None:
    save(tmp_path / "source", "llama", **GATED)
    parameter = {"hidden_act_param": 0.5} if hidden_act == "fatrelu" else {}
    rewrite_config(tmp_path / "source", {"hidden_act": hidden_act, **parameter})

    convert(tmp_path / "source", tmp_path / "out", **options)

    manifest = read_manifest(tmp_path / "out")
    assert (manifest.spec.activation, manifest.spec.activation_threshold) == expected
    assert manifest.source["overrides"] == options
    assert describe(tmp_path / "source", dtype="f32", **options) == manifest.spec


def test_description_needs_no_weights(tmp_path: Path) -> None:
    save(tmp_path / "source", "llama", **GATED)
    (tmp_path / "source" / "model.safetensors").unlink()
    for named, dtype in (
        ({"dtype": "bfloat16"}, "bf16"),
        ({"torch_dtype": "float32"}, "f32"),
        ({"torch_dtype": "torch.float16"}, "f16"),
        ({}, "f16"),
        ({"dtype": "auto"}, "f16"),
    ):
        rewrite_config(tmp_path / "source", named, remove=("dtype", "torch_dtype"))
        assert describe(tmp_path / "source").dtype == dtype
    assert describe(tmp_path / "source", dtype="f32").dtype == "f32"


def test_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "source", "llama", **GATED)
    options = ["--act", "relu", "--fatrelu-threshold", "0.25", "--dtype", "bf16"]

    assert main(["convert", str(tmp_path / "source"), str(tmp_path / "out"), *options]) == 0

    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    overrides = {"act": "relu", "dtype": "bf16", "fatrelu_threshold": 0.25}
    assert read_manifest(tmp_path / "out").source["overrides"] == overrides


def test_computed_buffers_of_older_versions_are_left_out(tmp_path: Path) -> None:
    tensors = save(tmp_path / "source", "llama", **GATED)
    convert(tmp_path / "source", tmp_path / "plain")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32)}
    both = {name: torch.from_numpy(values) for name, values in (tensors | extra).items()}
    save_file(both, tmp_path / "source" / "model.safetensors", {"format": "pt"})

    convert(tmp_path / "source", tmp_path / "out")

    assert resident(tmp_path / "out").keys() == resident(tmp_path / "plain").keys()


def test_special_ids(tmp_path: Path) -> None:
    """A family's own where no file has any; none where a file says that there is none."""
    save(tmp_path / "source", "llama", **GATED)
    for change, expected in (
        ({}, (1, (2,))),
        ({"bos_token_id": None, "eos_token_id": None}, (None, ())),
        ({"bos_token_id": 4, "eos_token_id": [5, 6]}, (4, (5, 6))),
    ):
        (tmp_path / "source" / "generation_config.json").unlink(missing_ok=True)
        rewrite_config(tmp_path / "source", change, remove=("bos_token_id", "eos_token_id"))
        spec = describe(tmp_path / "source")
        assert (spec.bos_id, spec.eos_ids) == expected
    # Ids of the family that the vocabulary is too small for are none of this model's.
    save(tmp_path / "other", "phi3", **GATED)
    (tmp_path / "other" / "generation_config.json").unlink()
    rewrite_config(tmp_path / "other", {}, remove=("bos_token_id", "eos_token_id"))
    assert describe(tmp_path / "other").eos_ids == ()
