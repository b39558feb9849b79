"""Families whose code lives in their repositories: against a plain reference, and never run.

Their checkpoints are those of a class that has the same tensors, under another name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from safetensors.torch import load_file, save_file
from transformers.models.mistral.modeling_mistral import MistralMLP

from flashllm.engine.loading import load_decoder
from flashllm.flash.manifest import read_manifest
from tests.support.compare import Oracle, check_prefill, check_steps, oracle, prompt
from tests.support.reference import Shape, drelu, fatrelu, logits, stream_before_ffn
from tests.support.tiny import rewrite_config, tiny

SIZES: dict[str, Any] = {"intermediate_size": 83, "num_key_value_heads": 2}
BASE = Shape(layers=2, heads=6, kv_heads=2, head_dim=6)
RANK = 12


def reference(source: Path, shape: Shape, hidden: Any) -> Oracle:
    tensors = load_file(source / "model.safetensors")
    return lambda ids: logits(ids, tensors, shape, hidden).numpy()


def mark_remote(source: Path, model_type: str, **changes: Any) -> None:
    """Code that would be run if anybody did: it fails the test by leaving a file."""
    (source / "modeling.py").write_text(
        f"import pathlib; pathlib.Path({str(source / 'ran')!r}).touch()"
    )
    auto = {"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"}
    rewrite_config(source, {"model_type": model_type, "auto_map": auto, **changes})


@pytest.mark.parametrize("hidden_act", ["silu", "fatrelu", "relu"])
@pytest.mark.parametrize("tied", [True, False])
def test_minicpm(tmp_path: Path, hidden_act: str, tied: bool) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    tiny("llama", **SIZES, tie_word_embeddings=tied).save_pretrained(source)
    scales = {"scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 12}
    parameter = {"hidden_act_param": 0.05} if hidden_act == "fatrelu" else {}
    mark_remote(source, "minicpm", hidden_act=hidden_act, **scales, **parameter)

    convert(source, out)

    shape = Shape(2, 6, 2, 6, embed_scale=3.0, residual_scale=1.4 / 2**0.5, logit_scale=12 / 36)
    hidden = {
        "silu": lambda gate, up: torch.nn.functional.silu(gate) * up,
        "fatrelu": fatrelu(0.05),
        "relu": fatrelu(0.0),
    }[hidden_act]
    expected = reference(source, shape, hidden)
    assert read_manifest(out).spec.tied_head == tied
    check_prefill(expected, out, 50)
    check_steps(expected, out, "all" if hidden_act == "silu" else "gate")
    assert not (source / "ran").exists()


def test_the_reference_agrees_with_transformers(tmp_path: Path) -> None:
    model = tiny("mistral", **SIZES, sliding_window=9)
    model.save_pretrained(tmp_path)
    shape = Shape(2, 6, 2, 6, window=9)
    found = reference(tmp_path, shape, lambda gate, up: torch.nn.functional.silu(gate) * up)
    ids = prompt(40, 97)
    np.testing.assert_allclose(found(ids), oracle(model)(ids), atol=1e-5)


@pytest.mark.parametrize("hidden_act", ["fatrelu", "fatrelu_0.05"])
def test_sparsellama(tmp_path: Path, hidden_act: str) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    tiny("llama", **SIZES).save_pretrained(source)
    parameter = {"hidden_act_param": 0.05} if hidden_act == "fatrelu" else {}
    mark_remote(source, "sparsellama", hidden_act=hidden_act, **parameter)

    convert(source, out)

    spec = read_manifest(out).spec
    assert (spec.activation, spec.activation_threshold, spec.gate) == ("fatrelu", 0.05, "resident")
    check_steps(reference(source, BASE, fatrelu(0.05)), out, "gate")


class DoubleRelu(MistralMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.relu(self.gate_proj(x)) * torch.relu(self.up_proj(x)))


def bamboo(source: Path) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A checkpoint with predictors inside, and the model of transformers that it is."""
    model = tiny("mistral", **SIZES, sliding_window=None, hidden_act="relu")
    for layer in model.model.layers:
        layer.mlp.__class__ = DoubleRelu
    model.save_pretrained(source)
    mark_remote(source, "bamboo")
    tensors = load_file(source / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.predictor"
        tensors[f"{prefix}.fc1.weight"] = torch.randn(RANK, 36, generator=generator)
        tensors[f"{prefix}.fc2.weight"] = torch.randn(83, RANK, generator=generator)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    return model, tensors


def test_bamboo(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    model, _ = bamboo(source)

    convert(source, out)

    spec = read_manifest(out).spec
    assert (spec.activation, spec.gate) == ("drelu", "resident")
    assert "predictors.safetensors" not in read_manifest(out).files
    for expected in (oracle(model), reference(source, BASE, drelu)):
        check_prefill(expected, out, 50)
        for select in ("gate", "oracle", "all"):
            check_steps(expected, out, select)
    assert not (source / "ran").exists()


def test_drelu_by_hand(tmp_path: Path) -> None:
    """The same model under a name that transformers knows."""
    source, out = tmp_path / "source", tmp_path / "out"
    model, tensors = bamboo(source)
    kept = {name: values for name, values in tensors.items() if "predictor" not in name}
    save_file(kept, source / "model.safetensors", {"format": "pt"})
    rewrite_config(source, {"model_type": "mistral"})

    convert(source, out, act="drelu")

    assert read_manifest(out).source["overrides"] == {"act": "drelu"}
    check_steps(oracle(model), out, "gate")


def test_predictors_inside_name_what_they_named_there(tmp_path: Path) -> None:
    """They read the stream before the norm, there and here."""
    source, out = tmp_path / "source", tmp_path / "out"
    _, tensors = bamboo(source)

    convert(source, out, predictors="checkpoint")

    manifest = read_manifest(out)
    assert manifest.spec.gate == "bundled"
    assert {"predictors.safetensors", "predictors.crc32c"} == {
        n for n in manifest.files if "predict" in n
    }
    assert "activity.json" not in manifest.files
    ids = prompt(30, 97)
    before = stream_before_ffn(ids, tensors, BASE)
    prefix = "model.layers.0.mlp.predictor"
    scores = torch.relu(before @ tensors[f"{prefix}.fc1.weight"].T)
    scores = scores @ tensors[f"{prefix}.fc2.weight"].T
    decoder, _, store = load_decoder(out)
    with store:
        assert decoder.selects == "predicted"
        for score, x in zip(scores, before.numpy(), strict=True):
            chosen = set(decoder.choose(0, x).tolist())
            # A score so near 0 may fall on either side: predictors are stored in f16.
            doubtful = set(torch.nonzero(score.abs() < 0.02).flatten().tolist())
            named = set(torch.nonzero(score > 0).flatten().tolist())
            assert chosen ^ named <= doubtful
            assert len(doubtful) < 8 < len(named)
