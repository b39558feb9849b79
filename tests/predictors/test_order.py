"""Neurons in order of co-activation: a permutation that changes no answer, whole or absent."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert, reorder, verify
from flashllm.convert.output.writing import write_manifest
from flashllm.predictors.coactivation import loads, order_of
from safetensors.numpy import load_file, save_file

from flashllm.engine.loading import load_decoder
from flashllm.errors import CannotCreate, Interrupted, LayoutError, NotEnoughSpace, UsageError
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import FileRecord, read_manifest
from flashllm.flash.neuron_order import NeuronOrder, read_order
from flashllm.progress import SilentProgress
from tests.support.checkpoints import all_bytes
from tests.support.tiny import save_exact_predictors, save_opt, sparse_opt, tiny

IDS = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "some.ids"
    ids = np.random.default_rng(1).integers(3, 96, size=(30, 40))
    path.write_text("\n".join(" ".join(map(str, line)) for line in ids))
    return path


@pytest.fixture(scope="module")
def ordered(sparse_model: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ordered") / "out"
    reorder(sparse_model, path, calibration=text)
    return path


def logits(directory: Path, mode: Any) -> np.ndarray:
    decoder, _, store = load_decoder(directory)
    with store:
        return np.concatenate(list(decoder.logits_blocks(IDS, mode)))


def ids_chosen(directory: Path) -> list[list[np.ndarray]]:
    """Of each layer, the ids that each token is computed with."""
    found: list[list[np.ndarray]] = []
    decoder, _, store = load_decoder(directory)
    with store:
        for _ in decoder.logits_blocks(IDS, "selected", chosen=lambda _, ids: found.append(ids)):
            pass
    return found


@pytest.mark.parametrize("mode", ["dense", "selected", "oracle"])
def test_the_answer_is_the_same_but_for_rounding(
    sparse_model: Path, ordered: Path, mode: str
) -> None:
    before, after = logits(sparse_model, mode), logits(ordered, mode)
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def test_ids_lead_back_to_those_of_the_checkpoint(sparse_model: Path, ordered: Path) -> None:
    order = read_order(ordered / "order.safetensors", read_manifest(ordered).spec)
    assert (order.neurons != np.arange(order.neurons.shape[1])).any(axis=1).all()
    before, after = ids_chosen(sparse_model), ids_chosen(ordered)
    for layer, (old, new) in enumerate(zip(before, after, strict=True)):
        for ids, places in zip(old, new, strict=True):
            assert sorted(order.neurons[layer][places]) == ids.tolist()


def test_every_bundle_is_the_one_that_it_was(sparse_model: Path, ordered: Path) -> None:
    order = read_order(ordered / "order.safetensors", read_manifest(ordered).spec)
    old, new = (read_header(path / "ffn.bundles") for path in (sparse_model, ordered))
    assert old.file_id != new.file_id
    before, after = (
        np.fromfile(path / "ffn.bundles", np.uint8) for path in (sparse_model, ordered)
    )
    for layer in range(old.n_layers):
        start, stop = old.offset(layer, 0), old.offset(layer, 0) + 320 * old.stride
        bundles = before[start:stop].reshape(320, old.stride)
        assert (after[start:stop].reshape(320, old.stride) == bundles[order.neurons[layer]]).all()


def test_it_is_whole_and_the_same_each_time(
    sparse_model: Path, ordered: Path, text: Path, tmp_path: Path
) -> None:
    assert verify(ordered).ok
    reorder(sparse_model, tmp_path / "again", calibration=text)
    assert all_bytes(tmp_path / "again") == all_bytes(ordered)


def test_a_neuron_that_occurs_twice_is_damage(ordered: Path, tmp_path: Path) -> None:
    spec = read_manifest(ordered).spec
    order = read_order(ordered / "order.safetensors", spec)
    neurons = order.neurons.copy()
    neurons[1, 3] = neurons[1, 4]
    path = tmp_path / "order.safetensors"
    path.write_bytes(NeuronOrder(neurons, order.rates).to_bytes())
    with pytest.raises(LayoutError, match="occurs twice"):
        read_order(path, spec)
    path.write_bytes(NeuronOrder(neurons[:1], order.rates[:1]).to_bytes())
    with pytest.raises(LayoutError, match="no order of"):
        read_order(path, spec)


def test_converting_in_order_is_converting_and_reordering(text: Path, tmp_path: Path) -> None:
    model = sparse_opt()
    predictors = save_exact_predictors(model, tmp_path / "predictors.safetensors")
    source = save_opt(model, tmp_path / "source")
    convert(source, tmp_path / "plain", predictors=predictors, calibration=text)
    convert(source, tmp_path / "out", predictors=predictors, calibration=text, order="coactivation")
    reorder(tmp_path / "plain", tmp_path / "reordered", calibration=text)
    assert all_bytes(tmp_path / "out") == all_bytes(tmp_path / "reordered")
    assert verify(tmp_path / "out").ok


def test_a_resident_gate_goes_along(text: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    tiny("llama", hidden_act="relu", intermediate_size=83).save_pretrained(source)
    convert(source, tmp_path / "plain", calibration=text)
    convert(source, tmp_path / "out", calibration=text, order="coactivation")
    for mode in ("dense", "selected"):
        before, after = logits(tmp_path / "plain", mode), logits(tmp_path / "out", mode)
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    assert verify(tmp_path / "out").ok


def test_what_cannot_be_ordered_is_refused(
    sparse_model: Path, ordered: Path, text: Path, tmp_path: Path
) -> None:
    model = sparse_opt()
    predictors = save_exact_predictors(model, tmp_path / "predictors.safetensors")
    source, out = save_opt(model, tmp_path / "source"), tmp_path / "out"
    with pytest.raises(UsageError, match="--calibration"):
        convert(source, out, predictors=predictors, order="coactivation")
    with pytest.raises(UsageError, match="--predictors"):
        convert(source, out, order="coactivation")
    with pytest.raises(UsageError, match="expected one of"):
        convert(source, out, order="random")
    with pytest.raises(UsageError, match="already"):
        reorder(ordered, out, calibration=text)
    with pytest.raises(UsageError, match="no such file"):
        reorder(sparse_model, out, calibration=tmp_path / "none.ids")
    with pytest.raises(CannotCreate, match="inside the model"):
        reorder(sparse_model, sparse_model / "out", calibration=text)
    assert not out.exists()


def test_tensors_of_no_layer_are_refused(sparse_model: Path, text: Path, tmp_path: Path) -> None:
    """The runtime never looks at them; what moves all tensors does."""
    model = tmp_path / "model"
    shutil.copytree(sparse_model, model)
    path = model / "predictors.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"layers.99.up": tensors["layers.0.up"]}, path)
    manifest = read_manifest(sparse_model)
    record = FileRecord(path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    files = manifest.files | {path.name: record}
    del files["predictors.crc32c"]  # as a model of an earlier version
    (model / "predictors.crc32c").unlink()
    write_manifest(model, dataclasses.replace(manifest, files=files))
    with pytest.raises(LayoutError, match=r"layers\.99\.up is missing or not expected"):
        reorder(model, tmp_path / "out", calibration=text)
    assert not (tmp_path / "out").exists()


class StopIn(SilentProgress):
    """Ctrl-C as soon as a phase makes progress."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self.met = False

    def start(self, phase: str, total_bytes: int) -> None:
        self.met = phase.startswith(self._phase)

    def advance(self, nbytes: int) -> None:
        if self.met:
            raise KeyboardInterrupt


@pytest.mark.parametrize("phase", ["recording", "ordering", "writing in order"])
def test_an_interruption_leaves_nothing(
    sparse_model: Path, text: Path, tmp_path: Path, phase: str
) -> None:
    with pytest.raises(Interrupted):
        reorder(sparse_model, tmp_path / "out", calibration=text, progress=StopIn(phase))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(
    sparse_model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10, f_frsize=4096))
        with pytest.raises(NotEnoughSpace, match="are free"):
            reorder(sparse_model, tmp_path / "out", calibration=text)
    assert not list(tmp_path.iterdir())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotEnoughSpace, match="make room"):
        reorder(sparse_model, tmp_path / "out", calibration=text)
    assert not list(tmp_path.iterdir())


def test_loads_are_what_the_window_does_not_hold() -> None:
    generator = np.random.default_rng(0)
    used = generator.random((50, 40)) < 0.2
    starts = [0, 20, 23]
    expected = np.zeros_like(used)
    for start, stop in ((0, 20), (20, 23), (23, 50)):
        for token in range(start + 5, stop):
            held = {n for t in range(token - 5, token) for n in np.flatnonzero(used[t])}
            for neuron in np.flatnonzero(used[token]):
                expected[token, neuron] = neuron not in held
    assert (loads(used, starts) == expected).all()


def test_what_is_loaded_together_lies_together() -> None:
    """Hidden groups, one or two a token: each is found, hot neurons first, unused ones last."""
    generator = np.random.default_rng(0)
    groups = generator.permutation(np.repeat(np.arange(12), 8))
    n = len(groups) + 4
    loaded = np.zeros((400, n), dtype=np.bool_)
    for row in loaded:
        row[: len(groups)] = np.isin(groups, generator.integers(12, size=2))
    rates = loaded.mean(axis=0, dtype=np.float64).astype(np.float32)
    rates[7] = 0.75
    rates[len(groups) :] = 0
    order = order_of(rates, loaded)
    assert sorted(order) == list(range(n))
    assert order[0] == 7
    assert order[-4:].tolist() == list(range(n - 4, n))
    changes = np.count_nonzero(np.diff(groups[order[1:-4]]))
    assert changes == 11


def test_nothing_loaded_keeps_the_order() -> None:
    assert order_of(np.zeros(9, np.float32), np.zeros((5, 9), np.bool_)).tolist() == [*range(9)]
