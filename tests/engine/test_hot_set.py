"""Experts that a run held are there for the next one, and no answer depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import convert

from flashllm.engine import hot_set
from flashllm.engine.hot_set import kept_hot_set
from flashllm.engine.local import Model, open_model
from flashllm.flash.store import Store
from flashllm.system.paths import cache_dir
from tests.support.tiny import tiny

PROMPT = [5, 17, 40]
EXPERTS, SLOTS = 24, 9


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hot")
    sizes = {"num_experts": EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
    model = tiny("qwen3_moe", hidden_size=64, num_key_value_heads=2, head_dim=32, **sizes)
    model.save_pretrained(root / "source")
    convert(root / "source", root / "model", dtype="f32")
    return root / "model"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))


def opened(path: Path) -> Model:
    """With fewer slots than experts."""
    model = open_model(path)
    for layer in range(2):
        assert model.plan.slots_per_layer[layer] == EXPERTS
    model._decoder.pool.resize([SLOTS, SLOTS])
    return model


def answered(model: Model) -> tuple[list[int], int]:
    """An answer's ids, and the experts that its first step loaded."""
    generation = model.generate(PROMPT, 12)
    tokens = list(generation)
    return [token.id for token in tokens], generation.prefill.bytes_read


def warmed(model: Model) -> int:
    return sum(1 for _ in iter(model.warm_up, 1.0))


def test_the_next_run_begins_with_what_the_last_one_held(model_path: Path) -> None:
    with opened(model_path) as model:
        assert warmed(model) == 0, "nothing was kept yet"
        expected, cold = answered(model)
        held = model._decoder.hot_set()
        assert all(SLOTS // 2 < len(ids) <= SLOTS for ids in held)
    with Store(model_path) as store:
        found = kept_hot_set(store.header.file_id, store.spec)
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in held]
    with opened(model_path) as model:
        assert warmed(model) > 1
        pool = model._decoder.pool
        for layer in range(2):
            assert set(pool.valuable(layer).tolist()) == set(held[layer].tolist())
        found_ids, warm = answered(model)
        assert found_ids == expected
        assert warm < cold / 2
        assert warmed(model) == 0


def test_an_answer_comes_between(model_path: Path) -> None:
    with opened(model_path) as model:
        warmed(model)
        expected, _ = answered(model)
    with opened(model_path) as model:
        assert model.warm_up() < 1.0
        assert answered(model)[0] == expected
        warmed(model)
        assert answered(model)[0] == expected


def test_runs_that_never_idle_keep_nothing(model_path: Path) -> None:
    with opened(model_path) as model:
        answered(model)
    assert not (cache_dir() / "hot-experts").exists()


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"experts": 3}', '{"experts": [[1]]}', '{"experts": [[1], [24]]}',
        '{"experts": [[1], [2, 2]]}', '{"experts": [[1], ["2"]]}', '{"experts": [[1], [true]]}',
        '{"experts": [[1], [-1]]}', '{"experts": [[1], 2]}',
    ],
)  # fmt: skip
def test_what_was_kept_may_be_anything(model_path: Path, content: str) -> None:
    with Store(model_path) as store:
        hot_set.keep_hot_set(store.header.file_id, [np.array([3, 1], np.int32)] * 2)
        assert [ids.tolist() for ids in kept_hot_set(store.header.file_id, store.spec)] == [
            [3, 1],
            [3, 1],
        ]
        (path,) = (cache_dir() / "hot-experts").iterdir()
        assert json.loads(path.read_text()) == {"experts": [[3, 1], [3, 1]]}
        path.write_text(content)
        assert kept_hot_set(store.header.file_id, store.spec) == []


def test_where_nothing_can_be_kept(model_path: Path, tmp_path: Path) -> None:
    cache_dir().mkdir(parents=True, exist_ok=True)
    (cache_dir() / "hot-experts").write_text("no directory")
    with opened(model_path) as model:
        assert warmed(model) == 0
        assert len(answered(model)[0]) > 1
