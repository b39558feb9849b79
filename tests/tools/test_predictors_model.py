"""Predictors of a real, tiny, converted model: trained, loaded by the runtime, interrupted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from flashllm.predictors import train_predictors
from flashllm.predictors.__main__ import main
from flashllm.predictors.files import PREDICTORS_FILE
from flashllm.predictors.progress import SilentProgress
from flashllm.predictors.report import FILE_NAME, read_report
from flashllm.predictors.weights import UpProjections

import flashllm
from flashllm.errors import CannotCreate, Interrupted, UnsupportedModel, UsageError
from tests.tiny import save_opt, tiny_opt

VOCAB = 96


@pytest.fixture(scope="module")
def opt():
    return tiny_opt(3)


@pytest.fixture(scope="module")
def checkpoint(opt, tmp_path_factory):
    return save_opt(opt, tmp_path_factory.mktemp("opt") / "checkpoint")


@pytest.fixture(scope="module")
def directory(checkpoint):
    convert(checkpoint, checkpoint.parent / "model")
    return checkpoint.parent / "model"


@pytest.fixture(scope="module")
def text(checkpoint):
    path = checkpoint.parent / "text.ids"
    generator = np.random.default_rng(0)
    lines = [" ".join(map(str, generator.integers(0, VOCAB, 40))) for _ in range(60)]
    path.write_text("\n".join(lines))
    return path


class InterruptedProgress(SilentProgress):
    """Ctrl-C in the middle of a phase."""

    def __init__(self, phase: str) -> None:
        self.phase, self.now = phase, ""

    def start(self, phase, total_bytes):
        self.now = phase

    def advance(self, nbytes):
        if self.now == self.phase:
            raise KeyboardInterrupt


def test_up_projections_are_the_checkpoints(opt, directory, monkeypatch):
    monkeypatch.setattr("flashllm.predictors.weights.BLOCK_BYTES", 70 * 512)
    reader = UpProjections(directory)
    for layer, block in enumerate(opt.model.decoder.layers):
        assert torch.equal(reader.layer(layer), block.fc1.weight.detach())
    reader.close()


def test_trained_while_converting_and_used_by_the_runtime(checkpoint, text, tmp_path):
    convert(checkpoint, tmp_path / "model", predictors="train", calibration=text)
    report = read_report(tmp_path / "model")
    assert report.calibration_tokens == 60 * 40
    assert report.mean["false_negatives"] < 0.10
    with flashllm.open_model(tmp_path / "model", select="predicted") as model:
        assert model.info.has_predictors
        assert len(list(model.generate([5, 6, 7], max_tokens=8))) == 8


def test_the_same_text_and_seed_give_the_same_files(directory, text, tmp_path):
    for name in ("a", "b"):
        train_predictors(directory, tmp_path / name, text)
    for name in (PREDICTORS_FILE, FILE_NAME):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    "phase", ["recording activations", "training predictors", "measuring predictors"]
)
def test_ctrl_c_leaves_nothing(directory, text, tmp_path, phase):
    with pytest.raises(Interrupted, match="nothing was kept"):
        train_predictors(directory, tmp_path / "out", text, InterruptedProgress(phase))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_destination_that_is_a_file_is_refused(directory, text, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(CannotCreate, match="cannot write here"):
        train_predictors(directory, tmp_path / "out", text)


def test_without_a_text_the_message_says_how_to_give_one(directory, tmp_path):
    with pytest.raises(UsageError, match="--calibration FILE"):
        train_predictors(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_neurons_of_three_rows_are_refused(directory, monkeypatch):
    class Store:
        def __init__(self, directory):
            self.spec = type("Spec", (), {"rows_per_neuron": 3, "neurons_per_bundle": 1})()

    monkeypatch.setattr("flashllm.predictors.weights.Store", Store)
    with pytest.raises(UnsupportedModel, match="3 rows"):
        UpProjections(directory)


def test_the_command_trains_and_prints_the_table(directory, text, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main([str(directory), "--train", out, "--calibration", str(text)]) == 0
    trained = capsys.readouterr()
    assert "training predictors: done" in trained.err
    assert main([out]) == 0
    assert capsys.readouterr().out == trained.out
    assert main([str(directory)]) == 66
    assert "--predictors train" in capsys.readouterr().err
    (tmp_path / "out" / FILE_NAME).write_text('{"windows": []}')
    assert main([out]) == 65
