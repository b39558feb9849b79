"""`benchmarks.prompt_neurons`: figures against those of `flashllm eval`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flashllm.predictors.evaluation import EvaluatedModel, TextSettings, evaluate_text

from benchmarks import prompt_neurons
from flashllm.progress import SilentProgress


def test_prompts_are_laid_beside_the_modes_of_eval(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prompt_neurons.main(["--model", str(demo), "--tokens", "600", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["prompts"]
    settings = TextSettings(tokens=600)
    with EvaluatedModel.open(demo, None) as model:
        text = evaluate_text(
            model, prompt_neurons.DEMO / "heldout.jsonl", settings, SilentProgress()
        )
    for name, mode in (("all exact", "dense"), ("selected", "predicted")):
        expected = text["modes"][mode]["perplexity"]
        assert found[name]["perplexity"] == pytest.approx(expected, rel=1e-6)
    perplexities = {one["perplexity"] for one in found.values()}
    assert len(perplexities) == len(found) == 3
    assert {one["tokens"] for one in found.values()} == {text["tokens_scored"]}
