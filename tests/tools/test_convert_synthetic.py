"""Synthetic checkpoints are what they claim: the shape, mostly silent, marked, and convertible."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flashllm.convert import convert, verify
from transformers import OPTForCausalLM

from flashllm.flash.layout import read_manifest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "synthetic.py"


def write(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), options[0], str(directory), *options[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("synthetic") / "tiny"
    result = write(directory, "tiny", "--dtype", "f32")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(directory)
    return directory


def test_converts_and_is_marked(source: Path, tmp_path: Path) -> None:
    assert len(list(source.glob("*.safetensors"))) >= 3
    convert(source, tmp_path / "out")
    assert verify(tmp_path / "out").ok
    manifest = read_manifest(tmp_path / "out")
    assert manifest.synthetic
    assert (manifest.spec.d_model, manifest.spec.d_ffn, manifest.spec.n_layers) == (96, 1024, 3)


def test_most_neurons_are_silent(source: Path) -> None:
    model = OPTForCausalLM.from_pretrained(source).eval()
    active: list[float] = []
    for layer in model.model.decoder.layers:
        layer.fc1.register_forward_hook(
            lambda _, __, output: active.append((output > 0).float().mean().item())
        )
    lines = (source / "calibration.ids").read_text().splitlines()
    ids = [[int(word) for word in line.split()] for line in lines]
    assert sum(map(len, ids)) == 4096
    with torch.no_grad():
        logits = model(torch.tensor(ids)).logits
    assert len(active) == 3
    assert all(0.015 < share < 0.05 for share in active), active
    assert abs(np.mean(active) - 0.03) < 0.006
    assert torch.isfinite(logits).all()
    # Random, and yet not a copy of its input.
    assert (logits[:, :-1].argmax(-1) == torch.tensor(ids)[:, :-1]).float().mean() < 0.2


def test_post_norm_shape_and_the_same_seed_twice(tmp_path: Path) -> None:
    options = ("opt-350m", "--layers", "1", "--dtype", "f16")
    for name in ("first", "second"):
        assert write(tmp_path / name, *options).returncode == 0
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()
    convert(tmp_path / "first", tmp_path / "out")
    spec = read_manifest(tmp_path / "out").spec
    assert (spec.embed_dim, spec.d_model, spec.norm_placement) == (512, 1024, "post")
    assert spec.dtype == "f16"


def test_refusals(source: Path, tmp_path: Path) -> None:
    again = write(source, "tiny")
    assert again.returncode == 73
    assert "exists already" in again.stderr
    assert write(tmp_path / "x", "unheard-of").returncode == 2
    assert write(tmp_path / "x", "tiny", "--layers", "0").returncode == 2
    assert not (tmp_path / "x").exists()
    assert json.loads((source / "config.json").read_text())["flashllm_synthetic"] is True
