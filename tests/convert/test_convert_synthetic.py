"""Synthetic checkpoints: the shape asked for, marked, repeatable, convertible, and right."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import convert, verify
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from benchmarks.synthetic_model import __main__
from flashllm.flash.manifest import read_manifest
from tests.support.compare import check_prefill, check_steps, oracle

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
    assert "the generator's own" in result.stderr
    return directory


def test_converts_and_is_marked(source: Path, tmp_path: Path) -> None:
    assert len(list(source.glob("model-*.safetensors"))) >= 3
    convert(source, tmp_path / "out", predictors=source / "predictors.safetensors")
    assert verify(tmp_path / "out").ok
    manifest = read_manifest(tmp_path / "out")
    assert manifest.synthetic
    assert (manifest.spec.d_model, manifest.spec.d_ffn, manifest.spec.n_layers) == (96, 1024, 3)
    config = json.loads((source / "config.json").read_text())
    assert config["flashllm_synthetic"] is True
    assert "nothing that was trained" in config["flashllm_synthetic_note"]
    assert manifest.source["synthetic_note"] == config["flashllm_synthetic_note"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"flashllm_synthetic_note": "x" * 1000}, "x" * 300),
        ({"flashllm_synthetic_note": 7}, None),
        ({"flashllm_synthetic": False}, None),
    ],
    ids=["long", "a number", "not synthetic"],
)
def test_the_note_is_carried_from_synthetic_models_only(
    changes: dict[str, object], expected: str | None, source: Path, tmp_path: Path
) -> None:
    shutil.copytree(source, tmp_path / "in")
    config = json.loads((source / "config.json").read_text()) | changes
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "in", tmp_path / "out")
    assert read_manifest(tmp_path / "out").source.get("synthetic_note") == expected


def test_the_note_speaks_of_predictors_only_where_there_are_some(
    source: Path, tmp_path: Path
) -> None:
    gated = tmp_path / "gated"
    assert write(gated, "small-llama").returncode == 0
    for directory in (source, gated):
        note = json.loads((directory / "config.json").read_text())["flashllm_synthetic_note"]
        assert note.startswith("random weights with calibrated activity")
        assert ("predictors" in note) == (directory / "predictors.safetensors").exists()
    assert not (gated / "predictors.safetensors").exists()


def test_calibrating_measures_windows(source: Path, tmp_path: Path) -> None:
    convert(
        source,
        tmp_path / "out",
        predictors=source / "predictors.safetensors",
        calibration=source / "calibration.ids",
    )
    activity = json.loads((tmp_path / "out" / "activity.json").read_text())
    needed = activity["predicted"]["slots_needed"]  # of windows of 1, 2, 3, ... tokens: by layer
    assert all(len(layers) == 3 for layers in needed)
    assert all(a <= b <= 1024 for a, b in zip(needed[0], needed[4], strict=True))
    assert len(activity["layers"]) == 3
    assert all(0.02 < layer["active_predicted"] < 0.25 for layer in activity["layers"])


def test_texts_differ(source: Path) -> None:
    texts = [(source / name).read_text() for name in ("calibration.ids", "heldout.ids")]
    lines = [text.splitlines() for text in texts]
    assert not set(lines[0]) & set(lines[1])
    assert len(lines[0]) >= 20
    assert all(4 <= int(word) < 600 for text in texts for word in text.split())


@pytest.mark.parametrize("shape", ["tiny", "small-falcon", "small-llama"])
def test_computes_as_transformers_do(shape: str, tmp_path: Path) -> None:
    assert write(tmp_path / "source", shape, "--dtype", "f32").returncode == 0
    convert(tmp_path / "source", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "source").eval()
    check_prefill(oracle(model), tmp_path / "out", 60)
    gated = shape == "small-llama"
    check_steps(oracle(model), tmp_path / "out", "gate" if gated else "all")


@pytest.mark.parametrize("shape", ["tiny", "small-falcon", "small-llama"])
def test_the_same_seed_gives_the_same_bytes_and_another_others(shape: str, tmp_path: Path) -> None:
    for name, seed in (("first", "3"), ("second", "3"), ("other", "4")):
        assert write(tmp_path / name, shape, "--seed", seed).returncode == 0
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()
    name = "model-00001-of-00003.safetensors"
    if not (tmp_path / "first" / name).exists():
        name = "model-00001-of-00004.safetensors"
    assert (tmp_path / "first" / name).read_bytes() != (tmp_path / "other" / name).read_bytes()


def test_both_types_are_the_same_model(tmp_path: Path) -> None:
    for dtype in ("f32", "f16"):
        assert write(tmp_path / dtype, "tiny", "--dtype", dtype).returncode == 0
    wide, narrow = (
        {k: v for p in (tmp_path / d).glob("model-*.safetensors") for k, v in load_file(p).items()}
        for d in ("f32", "f16")
    )
    assert wide.keys() == narrow.keys()
    for name, values in wide.items():
        np.testing.assert_allclose(values, narrow[name], rtol=1e-3, atol=1e-7, err_msg=name)


def test_post_norm_shape(tmp_path: Path) -> None:
    assert write(tmp_path / "source", "opt-350m", "--layers", "1").returncode == 0
    convert(tmp_path / "source", tmp_path / "out")
    spec = read_manifest(tmp_path / "out").spec
    assert (spec.embed_dim, spec.d_model, spec.norm_placement) == (512, 1024, "post")
    assert (spec.dtype, spec.n_layers) == ("f16", 1)


def test_refusals(source: Path, tmp_path: Path) -> None:
    again = write(source, "tiny")
    assert again.returncode == 73
    assert "exists already" in again.stderr
    unknown = write(tmp_path / "x", "opt-1.3")
    assert unknown.returncode == 2
    assert "opt-1.3b" in unknown.stderr
    assert write(tmp_path / "x", "tiny", "--layers", "0").returncode == 2
    nowhere = write(tmp_path / "x" / "y", "tiny")
    assert nowhere.returncode == 73
    assert not (tmp_path / "x").exists()
    unheard = write(tmp_path / ("x" * 300), "tiny")
    assert unheard.returncode == 73
    assert "File name too long" in unheard.stderr
    negative = write(tmp_path / "x", "tiny", "--seed", "-1")
    assert negative.returncode == 2
    assert "--seed" in negative.stderr
    for result in (again, unknown, nowhere, unheard, negative):
        assert "Traceback" not in result.stderr


def test_asks_for_space_before_writing(tmp_path: Path) -> None:
    free_bytes = shutil.disk_usage(tmp_path).free
    layers = str(1 + free_bytes // 200_000_000)  # a layer of the widest shape takes 3.6 GB
    result = write(tmp_path / "x", "opt-175b", "--layers", layers, "--dtype", "f32")
    assert result.returncode != 0
    assert "are needed" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_interrupted_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "shape_of", interrupt)
    monkeypatch.setattr(sys, "argv", ["synthetic.py", "tiny", str(tmp_path / "x")])
    assert __main__.main() == 130
    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_interrupted_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "opt-125m", str(tmp_path / "x"), "--dtype", "f32"]
    # Whoever runs the tests may ignore the signal, and children inherit that.
    heard = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    )
    while process.poll() is None and not list(tmp_path.glob("*/model-*")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    assert "nothing is left" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
