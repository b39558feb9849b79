"""The demo as it is shipped: it knows its words, and its predictors belong to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flashllm
from flashllm.engine.local import open_model
from tools.demo.score import is_expected

DEMO = Path(flashllm.__file__).parent / "demo"
QUESTIONS = 60


def definitions() -> list[dict[str, Any]]:
    lines = (DEMO / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    asked = [record for record in records if record["intent"] == "definition"]
    return asked[:: len(asked) // QUESTIONS][:QUESTIONS]


def answers(directory: Path, select: str) -> list[str]:
    with open_model(directory, select=select) as model:
        found = []
        for record in definitions():
            generation = model.generate(model.tokenizer.encode_chat(record["messages"]), 64)
            shown = "".join(token.text for token in generation)
            assert generation.finish_reason == "stop"
            assert shown == generation.text
            found.append(shown)
        return found


@pytest.mark.parametrize("select", ["all", "predicted"])
def test_definitions(demo: Path, select: str) -> None:
    expected = [record["expected"] for record in definitions()]
    right = sum(map(is_expected, answers(demo, select), expected))
    # 99.1 % of 1,500 are right; of 60, nine in ten is what chance leaves room for.
    assert right >= 0.9 * QUESTIONS


def test_predictors_keep_their_promise() -> None:
    mean = json.loads((DEMO / "activity.json").read_text())["mean"]
    assert mean["false_negatives"] <= 0.05
    assert mean["false_positives"] <= 0.03
    assert mean["sparsity"] >= 0.95
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 24 << 20


def test_logits_agree_with_transformers(demo: Path) -> None:
    import numpy as np
    import torch
    from transformers import OPTForCausalLM

    oracle = OPTForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    with open_model(demo, select="all", kv_dtype="f32") as model, torch.no_grad():
        ids = model.tokenizer.encode_chat([{"role": "user", "content": "What does ocean mean?"}])
        expected = oracle(torch.tensor([ids])).logits[0].numpy()
        np.testing.assert_allclose(model.logits(ids), expected, atol=1e-4, rtol=0)
