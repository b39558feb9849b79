"""What a text teaches while a model is converted: predictors, or how much others let through."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flashllm.convert import convert, verify
from safetensors import safe_open

from flashllm.engine.loading import load_decoder
from flashllm.errors import Interrupted, NotEnoughSpace, UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.progress import SilentProgress
from tests.support.tiny import save_opt, sparse_opt, tiny

TOKENS = 1_500


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "some.ids"
    ids = np.random.default_rng(1).integers(3, 96, size=(TOKENS // 50, 50))
    path.write_text("\n".join(" ".join(map(str, line)) for line in ids))
    return path


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("gated") / "source"
    tiny("llama", hidden_act="relu", intermediate_size=83).save_pretrained(source)
    return source


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


class Phases(SilentProgress):
    """Remembers what was begun."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, phase: str, total_bytes: int) -> None:
        self.started.append(phase)


def test_a_gate_is_measured(gated: Path, text: Path, tmp_path: Path) -> None:
    convert(gated, tmp_path / "out", calibration=text)
    manifest = read_manifest(tmp_path / "out")
    assert "activity.json" in manifest.files
    assert "predictors.safetensors" not in manifest.files
    assert verify(tmp_path / "out").ok
    activity = json.loads((tmp_path / "out" / "activity.json").read_text())
    assert activity["calibration_tokens"] == TOKENS
    needed = activity["oracle"]["slots_needed"][0]
    assert all(0 < slots < 83 for slots in needed)
    # The plan has room for what was measured, rather than for everything.
    decoder, plan, store = load_decoder(tmp_path / "out", window=1)
    with store:
        assert decoder.selects == "gate"
        assert plan.slots_wanted < 2 * 83
        decoder.prefill(list(range(3, 40)))
        decoder.decode(7)


def test_a_gate_that_lets_through_what_up_silences(gated: Path, text: Path, tmp_path: Path) -> None:
    """What the gate opens is read, and so it is what the window must hold."""
    convert(gated, tmp_path / "one", calibration=text)
    convert(gated, tmp_path / "both", act="drelu", calibration=text)
    paths = (tmp_path / name / "activity.json" for name in ("one", "both"))
    one, both = (json.loads(path.read_text()) for path in paths)
    assert "gate" not in one
    # The first layer is given the same, whatever becomes of its neurons.
    held = [row[0] for row in both["gate"]["s_agg"]]
    assert held == [row[0] for row in one["oracle"]["s_agg"]]
    assert both["oracle"]["s_agg"][0][0] < 0.75 * held[0]
    decoder, plan, store = load_decoder(tmp_path / "both", window=1)
    with store:
        assert decoder.selects == "gate"
        assert plan.slots_wanted > sum(both["gate"]["slots_needed"][0])


def test_predictors_of_others_are_measured(gated: Path, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "predictors"
    folder.mkdir()
    for layer in range(2):
        tensors = {"fc1.weight": torch.randn(9, 36), "fc2.weight": torch.randn(83, 9)}
        torch.save(tensors, folder / f"model_{layer}.pt")
    convert(gated, tmp_path / "out", predictors=folder, calibration=text, allow_pickle=True)
    manifest = read_manifest(tmp_path / "out")
    assert {"activity.json", "predictors.safetensors"} <= set(manifest.files)
    assert verify(tmp_path / "out").ok
    mean = json.loads((tmp_path / "out" / "activity.json").read_text())["mean"]
    # They know nothing of the model: they miss half of what is active.
    assert 0.3 < mean["false_negatives"] < 0.7
    assert 0.3 < mean["false_positives"] < 0.7


@pytest.mark.parametrize("act", ["silu", None])
def test_a_text_that_teaches_nothing_is_refused(
    gated: Path, text: Path, tmp_path: Path, act: str | None
) -> None:
    source = gated
    if act is None:
        source = save_opt(sparse_opt(), tmp_path / "source")
    with pytest.raises(UsageError, match="nothing to measure or train") as caught:
        convert(source, tmp_path / "out", act=act, calibration=text)
    # What is advised is not refused in its turn.
    assert ("--predictors train" in str(caught.value)) == (act is None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.ids", b"", "empty"),
        ("t.ids", b"5 " * 999, "999 tokens are too few"),
        ("t.ids", b"5 9999 " * 600, "beyond the vocabulary"),
        ("t.ids", b"\x7fELF\xff" * 900, "not UTF-8"),
        ("t.txt", b"some words " * 900, "no tokenizer"),
    ],
    ids=["empty", "short", "beyond", "binary", "words"],
)
@pytest.mark.parametrize("wish", ["train", "none"])
def test_a_bad_text_is_refused_before_a_byte_is_written(
    gated: Path, tmp_path: Path, wish: str, name: str, content: bytes, message: str
) -> None:
    source = save_opt(sparse_opt(), tmp_path / "source") if wish == "train" else gated
    path, progress = tmp_path / name, Phases()
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "out", predictors=wish, calibration=path, progress=progress)
    assert progress.started == []
    assert not (tmp_path / "out").exists()


def test_a_disk_too_full_to_record_is_refused_before_a_byte_is_written(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_opt(sparse_opt(), tmp_path / "source")
    free = SimpleNamespace(f_bavail=48 << 10, f_frsize=1 << 10)
    monkeypatch.setattr("flashllm.convert.output.destination.os.statvfs", lambda _: free)
    convert(source, tmp_path / "plain")
    longer, progress, needed = tmp_path / "longer.ids", Phases(), []
    longer.write_text(text.read_text() + "\n" + text.read_text())
    for calibration in (text, longer):
        with pytest.raises(NotEnoughSpace, match="bytes are needed") as caught:
            convert(
                source,
                tmp_path / "out",
                predictors="train",
                calibration=calibration,
                progress=progress,
            )
        needed.append(int(str(caught.value).split(" bytes are")[0].split()[-1].replace(",", "")))
    assert progress.started == []
    assert needed[0] > 64 << 20
    # One layer's inputs in f16 and bits, of as many tokens more.
    spec = read_manifest(tmp_path / "plain").spec
    more = TOKENS * (2 * spec.d_model + spec.d_ffn // 8)
    assert needed[1] - needed[0] == pytest.approx(1.05 * more / 0.9, abs=3)


@pytest.mark.parametrize("phase", ["recording", "training", "perplexity"])
def test_training_goes_on_where_it_was_interrupted(text: Path, tmp_path: Path, phase: str) -> None:
    source = save_opt(sparse_opt(), tmp_path / "source")
    out, work = tmp_path / "out", tmp_path / "out.predictors-work"
    stopped = StopIn(phase)
    with pytest.raises(Interrupted, match="run the same command again to continue"):
        convert(source, out, predictors="train", calibration=text, progress=stopped)
    assert stopped.met
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.predictors-work", "source"]

    convert(source, out, predictors="train", calibration=text)
    assert not work.exists()
    assert verify(out).ok
    convert(source, tmp_path / "at once", predictors="train", calibration=text)
    for name in ("predictors.safetensors", "activity.json"):
        assert (out / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()
    with safe_open(out / "predictors.safetensors", "numpy") as tensors:
        assert len(tensors.keys()) == 3 * 4
