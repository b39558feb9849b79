"""The benchmark of orders: what it counts, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import reorder
from flashllm.predictors.neuron_order import record_use

from flashllm.errors import UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.flash.neuron_order import read_order
from flashllm.progress import SilentProgress

ROOT = Path(__file__).parents[2]


def write_ids(path: Path, seed: int, lines: int) -> Path:
    ids = np.random.default_rng(seed).integers(3, 96, size=(lines, 40))
    path.write_text("\n".join(" ".join(map(str, line)) for line in ids))
    return path


@pytest.fixture(scope="module")
def places(sparse_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model in order, and texts."""
    folder = tmp_path_factory.mktemp("order")
    write_ids(folder / "calibration.ids", 1, 30)
    write_ids(folder / "heldout.ids", 2, 30)
    reorder(sparse_model, folder / "ordered", calibration=folder / "calibration.ids")
    return folder


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.order", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_both_load_the_same_bundles_by_other_reads(sparse_model: Path, places: Path) -> None:
    text = places / "heldout.ids"
    finished = run(sparse_model, places / "ordered", "--text", text, "-n", 60, "--rounds", 1,
                   "--gaps", "0,4096", "--window", 2)  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout.splitlines()[-1])
    found = {(row["order"], row["gap_bytes"]): row["turns"][0] for row in report["rows"]}
    assert set(found) == {(o, g) for o in ("as it was", "in order") for g in (0, 4096)}
    assert len({turn["loads"] for turn in found.values()}) == 1
    for order in ("as it was", "in order"):
        near, far = found[order, 0], found[order, 4096]
        assert near["amplification"] == 1
        assert far["amplification"] > 1
        assert 0 < far["reads"] < near["reads"] < near["loads"]
        assert 0 < near["io_ms"] < near["token_ms"]


def test_models_that_do_not_belong_together(sparse_model: Path, places: Path) -> None:
    finished = run(places / "ordered", sparse_model, "--text", places / "heldout.ids")
    assert finished.returncode == UsageError.exit_code
    assert "give the model as it was first" in finished.stderr


def test_rates_are_how_often_neurons_are_named(sparse_model: Path, places: Path) -> None:
    """Held against a recording of the same text, by ids of the checkpoint."""
    trace = record_use(sparse_model, places / "calibration.ids", SilentProgress())
    order = read_order(places / "ordered" / "order.safetensors", read_manifest(sparse_model).spec)
    assert trace.tokens == 1200
    for layer in range(len(trace.layers)):
        rates = np.array([trace.used(layer)[:, neuron].mean() for neuron in order.neurons[layer]])
        np.testing.assert_allclose(order.rates[layer], rates, rtol=1e-6)
