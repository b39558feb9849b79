"""The activity of synthetic models is what they claim: counted by what `flashllm eval` counts with.

Tolerances: eight contexts of 512 tokens see about 64 independent states of what decays, and four
layers of 2,048 neurons; over seeds the figures vary by 2 to 3 %, and are allowed 6 to 12 %.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert
from flashllm.predictors import train_predictors
from flashllm.predictors.evaluation import EvaluatedModel, TextSettings, evaluate_text

from flashllm.large_arrays import Floats
from flashllm.progress import SilentProgress

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "synthetic.py"
TOKENS = 2048
ANSWER = 200
FAMILIES = ("small-opt", "small-falcon", "small-llama")


def write(shape: str, directory: Path) -> Path:
    command = [sys.executable, str(SCRIPT), shape, str(directory), "--dtype", "f32"]
    subprocess.run(command, capture_output=True, check=True)
    return directory


@pytest.fixture(scope="module", params=FAMILIES)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write(request.param, tmp_path_factory.mktemp("synthetic") / request.param)
    predictors = source / "predictors.safetensors"
    wish = predictors if predictors.exists() else "none"
    convert(source, source.with_suffix(".flash"), predictors=wish)
    return source.with_suffix(".flash")


def text_of(directory: Path) -> Path:
    return directory.with_suffix("") / "heldout.ids"


def evaluated(directory: Path) -> dict[str, Any]:
    with EvaluatedModel.open(directory, None) as model:
        return evaluate_text(model, text_of(directory), TextSettings(TOKENS), SilentProgress())


@pytest.fixture(scope="module")
def report(converted: Path) -> dict[str, Any]:
    return evaluated(converted)


def shares(report: dict[str, Any], name: str) -> list[float]:
    """Of a layer's neurons, what windows of 1, 2, 3, ... tokens hold; entry 0 is for none."""
    return [0.0, *report["windows"][name]["mean_share_held"]]


def test_few_are_active_and_more_in_late_layers(report: dict[str, Any]) -> None:
    assert report["mean"]["active"] == pytest.approx(0.0315, rel=0.12)
    layers = [layer["active"] for layer in report["layers"]]
    assert layers == sorted(layers)
    assert layers[0] == pytest.approx(0.015, rel=0.25)
    assert layers[-1] == pytest.approx(0.055, rel=0.12)


def test_what_is_active_persists(report: dict[str, Any], converted: Path) -> None:
    held = shares(report, "oracle")
    # Had tokens nothing in common, two would use nearly twice as much as one but for hot neurons.
    assert held[2] - held[1] < 0.7 * held[1]
    assert all(a < b for a, b in itertools.pairwise(held))
    if "llama" in converted.name:
        return
    # The paper's 24 % in five tokens and 2.4 % more in the sixth, of predicted neurons. What a
    # parallel first layer reads does not persist, and it is one of four here.
    held = shares(report, "predicted")
    assert held[1] == pytest.approx(0.096, rel=0.06)
    first_layer = 1.07 if "falcon" in converted.name else 1.0
    assert held[5] == pytest.approx(0.24 * first_layer, rel=0.06)
    assert held[6] - held[5] == pytest.approx(0.024 * first_layer, rel=0.10)


def test_low_rank_part_predicts_as_the_papers_predictors(
    report: dict[str, Any], converted: Path
) -> None:
    if "llama" in converted.name:
        pytest.skip("its gate decides")
    assert report["mean"]["false_negatives"] == pytest.approx(0.05, rel=0.12)
    assert report["mean"]["false_positives"] == pytest.approx(0.07, rel=0.08)
    # Those that are missed lie near zero, so that the answer hardly changes.
    assert report["mean"]["missed_mass"] < 0.025
    assert report["modes"]["predicted"]["ratio"] == pytest.approx(1.0, abs=0.02)


def test_neurons_have_close_friends(report: dict[str, Any]) -> None:
    for layer in report["friends"]:
        assert layer["rank"]["1"]["mean"] > 0.85


def test_how_often_neurons_are_active_is_a_power_law(converted: Path) -> None:
    lines = text_of(converted).read_text().splitlines()[:4]
    contexts = [[int(word) for word in line.split()] for line in lines]
    with EvaluatedModel.open(converted, "all") as model:
        spec = model.decoder.spec
        uses = np.zeros((spec.n_layers, spec.d_ffn))

        def tap(layer: int, _: Floats, margin: Floats) -> None:
            uses[layer] += (margin > 0).sum(axis=0)

        for ids in contexts:
            model.decoder.prefill(ids, tap=tap)
    rates = -np.sort(-uses / sum(map(len, contexts)), axis=1).mean(axis=0)
    assert rates[0] > 0.8
    # 1 / rank would give 55 % to the first tenth, and 10 % if all were alike.
    assert 0.45 < rates[: spec.d_ffn // 10].sum() / rates.sum() < 0.7
    ranks = np.arange(spec.d_ffn // 20, spec.d_ffn // 2)
    slope, _ = np.polyfit(np.log(ranks), np.log(rates[ranks]), 1)
    assert -1.3 < slope < -0.7


def test_greedy_decoding_does_not_run_in_a_circle(converted: Path) -> None:
    ids = [int(word) for word in text_of(converted).read_text().split()[:16]]
    answer: list[int] = []
    with EvaluatedModel.open(converted, None) as model:
        logits = model.decoder.prefill(ids)
        for _ in range(ANSWER):
            answer.append(int(np.argmax(logits)))
            logits = model.decoder.decode(answer[-1])
    late = answer[ANSWER // 2 :]
    # Of a vocabulary of 600; a circle would show few tokens, each many times.
    assert len(set(late)) > 30
    assert max(map(late.count, late)) < 12


def test_trained_predictors_reach_the_papers_errors(tmp_path: Path) -> None:
    source = write("small-opt", tmp_path / "source")
    convert(source, tmp_path / "model")
    found = train_predictors(
        tmp_path / "model", tmp_path / "out", source / "calibration.ids", tokens_max=4096
    )
    assert found.mean["false_negatives"] <= 0.05
    assert found.mean["false_positives"] <= 0.07
