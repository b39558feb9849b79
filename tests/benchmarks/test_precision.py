"""`benchmarks.precision`: figures against those of `flashllm eval`, and files that do not stay."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from flashllm.predictors.evaluation import (
    EvaluatedModel,
    TaskSettings,
    TextSettings,
    evaluate_tasks,
    evaluate_text,
)

from benchmarks import precision
from benchmarks.precision import COMBINATIONS, Combination, convert_to
from flashllm.progress import SilentProgress

SHORT = ["--tokens", "600", "--questions", "2"]


def test_each_precision_is_laid_beside_the_first_by_the_measures_of_eval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision, "COMBINATIONS", (COMBINATIONS[0], Combination("bf16", "int8")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert precision.main([*SHORT, "--json"]) == 0
    assert not list(tmp_path.iterdir())
    first, other = json.loads(capsys.readouterr().out)["rows"]
    assert (first["bundles"], other["bundles"], other["resident"]) == ("f32", "bf16", "int8")
    dense = first["text"]["dense"]
    assert (dense["ratio"], dense["divergence_nats"], dense["same_token"]) == (1, 0, 1)
    assert other["text"]["dense"]["divergence_nats"] > 0
    assert other["text"]["dense"]["ratio"] == pytest.approx(
        other["text"]["dense"]["perplexity"] / dense["perplexity"]
    )
    # Half, and what pads the demo's bundles of 640 bytes and their scales up to whole blocks.
    assert first["flash_bytes"] / 2 <= other["flash_bytes"] < 0.7 * first["flash_bytes"]
    assert 3 * other["resident_bytes"] < first["resident_bytes"]

    directory = tmp_path / "again"
    convert_to(precision.DEMO, directory, Combination("bf16", "int8"))
    silent = SilentProgress()
    text = precision.DEMO / "heldout.jsonl"
    with EvaluatedModel.open(directory, None) as model:
        wanted = evaluate_text(model, text, TextSettings(tokens=600), silent)
        tasks = evaluate_tasks(model, text, TaskSettings(2), silent)
    assert other["tokens"] == wanted["tokens_scored"]
    for name in ("dense", "predicted"):
        found = other["text"][name]["perplexity"]
        assert found == pytest.approx(wanted["modes"][name]["perplexity"], rel=1e-6)
    found = tasks["generation"]
    definitions = found.get("groups", {}).get("definition", found)
    assert other["answers"] == definitions["measures"]["exact"]
    assert other["questions"] == definitions["questions"]
    lines = precision.table([first, other]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[3].startswith("| bf16 | int8 | f16 |")


def test_definitions_are_what_counts_where_there_are_any() -> None:
    def share(right: float, questions: int) -> dict:
        return {"questions": questions, "measures": {"exact": {"dense": {"right": right}}}}

    grouped = share(0.5, 9) | {"groups": {"definition": share(0.9, 4), "kind": share(0.1, 5)}}
    found = precision._answers({"generation": grouped})
    assert (found["questions"], found["group"]) == (4, "definition")
    assert found["answers"] == {"dense": {"right": 0.9}}
    whole = precision._answers({"multiple_choice": share(0.7, 3)})
    assert (whole["questions"], whole["group"]) == (3, None)


def test_the_first_combination_is_the_exact_one_and_none_comes_twice() -> None:
    assert COMBINATIONS[0] == Combination("f32", "f32", options={"kv_dtype": "f32"})
    assert {one.options.get("kv_dtype") for one in COMBINATIONS} == {"f32", "int8", None}
    keys = [(*one.conversion, str(one.options)) for one in COMBINATIONS]
    assert len(set(keys)) == len(keys)
    assert {"f16", "bf16", "int8", "int4"} <= {one.bundles for one in COMBINATIONS}
