"""Turns and stops with every kind of block and selector: what was under way leaves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import convert

from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from tests.support.tiny import tiny

GATED: dict[str, Any] = {"intermediate_size": 83, "num_key_value_heads": 2}
# What the converted models select by, their blocks, and what is streamed.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "parallel, oracle": ("falcon", {"ffn_hidden_size": 83, "activation": "relu"}, "oracle"),
    "sequential, resident gate, window": (
        "mistral",
        {**GATED, "hidden_act": "relu", "sliding_window": 9},
        "gate",
    ),
    "all, streamed": ("qwen2", GATED, "all"),
}
QUESTION = list(range(5, 25))
DRAWN = Sampling(temperature=1.0, seed=3)


@pytest.fixture(scope="module", params=list(CASES))
def converted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    model_type, changes, select = CASES[request.param]
    root = tmp_path_factory.mktemp("family")
    tiny(model_type, **changes).save_pretrained(root / "source")
    convert(root / "source", root / "converted")
    return root / "converted", select


def answered(model: Model, ids: list[int], count: int, answer: int = 0) -> list[int]:
    generation = model.generate(ids, count, DRAWN, answer=answer)
    list(generation)
    return generation.ids


@pytest.mark.parametrize("kv_dtype", ["f32", "int8"])
def test_turns_stops_and_edits(converted: tuple[Path, str], kv_dtype: str) -> None:
    directory, select = converted
    with open_model(directory, select=select, kv_dtype=kv_dtype) as model:
        first = answered(model, QUESTION, 8)
        second_ids = [*QUESTION, *first, 30, 31]
        second = answered(model, second_ids, 8)
        answered(model, [*QUESTION, *first, 40], 3)  # edited, and back
        assert answered(model, second_ids, 8) == second
        for layer in range(model.info.spec.n_layers):
            begun = _stopped(model, second_ids, layer)
            ids = [*second_ids, *begun]
            assert begun + answered(model, ids, 8 - len(begun), len(begun)) == second


def _stopped(model: Model, ids: list[int], layer: int) -> list[int]:
    """Cancelled within a layer of the fourth token."""
    generation = model.generate(ids, 8, DRAWN)

    def stop(announced: int) -> None:
        if len(generation.ids) == 3 and announced == layer:
            model.cancel()

    model.decoder.before_layer = stop
    list(generation)
    model.decoder.before_layer = None
    assert generation.finish_reason == "cancelled"
    return generation.ids
