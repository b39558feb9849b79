"""Predictors of a real, tiny, converted model: trained, loaded by the runtime, interrupted."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from flashllm.predictors import measure_activity, measure_predictors, train_predictors
from flashllm.predictors.__main__ import main
from flashllm.predictors.files import PREDICTORS_FILE
from flashllm.predictors.model import ConvertedModel, check_trainable
from flashllm.predictors.report import FILE_NAME, read_report
from flashllm.predictors.up_projections import UpProjections
from flashllm.predictors.window_counter import WINDOWS

import flashllm
from flashllm.errors import CannotCreate, Interrupted, LayoutError, UnsupportedModel, UsageError
from flashllm.progress import SilentProgress
from tests.support.tiny import save_opt, tiny_opt

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
        if self.now.startswith(self.phase):
            raise KeyboardInterrupt


def test_up_projections_are_the_checkpoints(opt, directory, monkeypatch):
    monkeypatch.setattr("flashllm.predictors.up_projections.BLOCK_BYTES", 70 * 512)
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


@pytest.mark.parametrize("phase", ["recording activations", "training predictors", "perplexity"])
def test_ctrl_c_says_how_to_continue(directory, text, tmp_path, phase):
    out = tmp_path / "out"
    with pytest.raises(Interrupted, match="run the same command again") as caught:
        train_predictors(directory, out, text, InterruptedProgress(phase))
    assert list(out.iterdir()) == []
    assert str(tmp_path / "out.predictors-work") in str(caught.value)
    train_predictors(directory, out, text)
    assert not (tmp_path / "out.predictors-work").exists()
    train_predictors(directory, tmp_path / "at once", text)
    for name in (PREDICTORS_FILE, FILE_NAME):
        assert (out / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()


def test_where_nothing_is_kept_ctrl_c_names_nothing_to_remove(directory, text, tmp_path):
    with pytest.raises(Interrupted, match="run the same command to start again") as caught:
        train_predictors(directory, tmp_path / "out", text, InterruptedProgress("encoding"))
    assert "predictors-work" not in str(caught.value)
    assert not (tmp_path / "out.predictors-work").exists()


def test_a_destination_that_is_a_file_is_refused(directory, text, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(CannotCreate, match="cannot write here"):
        train_predictors(directory, tmp_path / "out", text)


def test_without_a_text_the_message_says_how_to_give_one(directory, tmp_path):
    with pytest.raises(UsageError, match="--calibration FILE"):
        train_predictors(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "silu"}, "zero for no neuron.*--select all"),
        ({"gate": "resident"}, "decides exactly.*--select gate"),
        ({"gate": "bundled", "rows_per_neuron": 3}, "decides exactly"),
    ],
)
def test_models_that_predictors_are_no_use_to_are_refused(directory, changes, message):
    spec = dataclasses.replace(ConvertedModel(directory).spec, **changes)
    with pytest.raises(UsageError, match=message) as caught:
        check_trainable(directory, spec)
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_models_without_a_gate_are_trained_for(directory, activation):
    spec = dataclasses.replace(ConvertedModel(directory).spec, activation=activation)
    check_trainable(directory, spec)


def sets_of(opt, layer, contexts):
    """What neurons are active, by transformers."""
    seen = []
    hook = opt.model.decoder.layers[layer].fc1.register_forward_hook(
        lambda _, __, out: seen.append(out.detach().reshape(-1, out.shape[-1]) > 0)
    )
    with torch.no_grad():
        for ids in contexts:
            opt(torch.tensor([ids]))
    hook.remove()
    return torch.cat(seen).numpy()


def test_activity_without_predictors_is_that_of_the_model(opt, directory, text, tmp_path):
    activity = measure_activity(directory, text, output=tmp_path)
    contexts = ConvertedModel(directory).contexts(text, 50_000, 0, SilentProgress())
    values = json.loads((tmp_path / FILE_NAME).read_text())
    assert values["calibration_tokens"] == 60 * 40
    assert values["windows"] == list(WINDOWS)
    for layer in range(2):
        flags = sets_of(opt, layer, contexts)
        assert activity.sparsity[layer] == pytest.approx(1 - flags.mean(), abs=1e-4)
        five = [flags[max(0, t - 4) : t + 1].any(0).sum() for t in range(len(flags))]
        use = values["oracle"]
        assert use["slots_needed"][4][layer] == pytest.approx(max(five), abs=1)
        assert use["s_agg"][4][layer] == pytest.approx(np.mean(five), rel=1e-3)
    assert values["mean"] == {"sparsity": pytest.approx(np.mean(activity.sparsity))}
    with pytest.raises(LayoutError, match="without predictors"):
        read_report(tmp_path)


def test_imported_predictors_are_measured_on_a_text(checkpoint, text, tmp_path):
    convert(checkpoint, tmp_path / "model", predictors="train", calibration=text)
    trained = read_report(tmp_path / "model")
    (tmp_path / "out").mkdir()
    report = measure_predictors(tmp_path / "model", text, output=tmp_path / "out")
    assert read_report(tmp_path / "out") == report
    assert report.heldout_tokens == report.calibration_tokens == 60 * 40
    for mine, theirs in zip(report.layers, trained.layers, strict=True):
        assert (mine.rank, mine.threshold) == (theirs.rank, pytest.approx(theirs.threshold))
    # The same text, all of it: windows are those that training saw.
    for mine, theirs in zip(report.predicted, trained.predicted, strict=True):
        assert mine.s_agg == pytest.approx(theirs.s_agg, rel=1e-2)
    assert report.oracle == trained.oracle


def test_a_model_that_is_never_sparse_has_no_activity_to_measure(
    directory, text, tmp_path, monkeypatch
):
    spec = dataclasses.replace(ConvertedModel(directory).spec, activation="gelu")
    monkeypatch.setattr(ConvertedModel, "spec", spec)
    for measure in (measure_activity, measure_predictors):
        with pytest.raises(UsageError, match="no activity to measure"):
            measure(directory, text, output=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_measuring_can_be_stopped(directory, text, tmp_path):
    with pytest.raises(Interrupted, match="nothing was written"):
        measure_activity(directory, text, InterruptedProgress("measuring"), output=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_neurons_of_three_rows_are_refused(directory, monkeypatch):
    class Store:
        def __init__(self, directory):
            self.spec = type("Spec", (), {"rows_per_neuron": 3, "neurons_per_bundle": 1})()

    monkeypatch.setattr("flashllm.predictors.up_projections.Store", Store)
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
    assert main([str(tmp_path / "nosuch")]) == 66
    assert capsys.readouterr().err.endswith("nosuch: no such directory\n")
    (tmp_path / "out" / FILE_NAME).write_text('{"windows": []}')
    assert main([out]) == 65
