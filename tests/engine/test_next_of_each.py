"""Answers that are written together: tokens, ends, costs, cancelling and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import convert

from flashllm.engine.generation import Generation
from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from flashllm.errors import ReadFailed
from flashllm.kv_cache.dram import KvCache
from tests.support.tiny import save_opt, sparse_opt

PROMPTS = [[5, 17, 40], [9], list(range(20, 34))]
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, seed=4), Sampling(temperature=1.2, seed=7)]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("together")
    convert(save_opt(sparse_opt(), root / "source"), root / "model", dtype="f16")
    return root / "model"


@pytest.fixture
def model(converted: Path) -> Any:
    with open_model(converted, select="oracle", contexts=3) as model:
        yield model


def begin(model: Model, lengths: tuple[int, ...] = (6, 9, 12)) -> list[Generation]:
    """Three answers whose prompts are read."""
    contexts = [None, model.new_context(), model.new_context()]
    found = []
    for ids, sampling, context, tokens in zip(PROMPTS, SAMPLINGS, contexts, lengths, strict=True):
        generation = model.generate(ids, tokens, sampling=sampling, context=context)
        next(generation)
        found.append(generation)
    return found


def test_tokens_are_those_of_each_alone(converted: Path, model: Model) -> None:
    with open_model(converted, select="oracle") as alone:
        expected = [
            [token.id for token in alone.generate(ids, tokens, sampling=sampling)]
            for ids, sampling, tokens in zip(PROMPTS, SAMPLINGS, (6, 9, 12), strict=True)
        ]
    going = begin(model)
    everyone = list(going)
    while going:
        told = going[0].next_of_each(going[1:])
        assert [None if token is None else token.id for token in told] == [
            each.ids[-1] for each in going
        ]
        going = [each for each in going if each.pending is not None]
    assert [each.ids for each in everyone] == expected
    assert {each.finish_reason for each in everyone} <= {"length", "stop"}
    model.generate([3], 1).complete()  # the contexts are free again


def test_their_attention_is_one_call_a_layer(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    going, calls = begin(model), []
    original = KvCache.attend_each

    def counted(cache: KvCache, others: Any, layer: int, *rest: Any) -> None:
        calls.append((len(others), layer))
        original(cache, others, layer, *rest)

    monkeypatch.setattr(KvCache, "attend_each", counted)
    going[0].next_of_each(going[1:])
    going[0].next_of_each([])
    assert calls == [(2, layer) for layer in range(model.info.spec.n_layers)]


def test_the_cost_of_a_step_is_shared_out(model: Model) -> None:
    going = begin(model)
    told = [token for token in going[0].next_of_each(going[1:]) if token is not None]
    costs = [token.cost for token in told]
    assert len(costs) == 3
    assert [each.costs[-1] for each in going] == costs
    for cost in costs:
        assert cost.wall_ns >= sum(cost.parts_ns.values()) - 3 * len(cost.parts_ns)
    assert max(cost.wall_ns for cost in costs) - min(cost.wall_ns for cost in costs) < 3


def test_one_alone_and_one_by_itself_meanwhile(model: Model) -> None:
    """A step of one, then its own token, then of all: the order of contexts changes nothing."""
    going = begin(model)
    assert going[1].next_of_each([])[0] is not None
    assert next(going[1]) is not None
    assert len(going[0].next_of_each(going[1:])) == 3
    assert [len(each.ids) for each in going] == [2, 4, 2]


def test_a_cancelled_one_ends_and_the_others_go_on(model: Model) -> None:
    going = begin(model)
    going[1].close()
    told = going[0].next_of_each(going[1:])
    assert [token is None for token in told] == [False, True, False]
    assert going[1].finish_reason == "cancelled"
    going[0].close()
    assert going[0].next_of_each([going[2]]) == [None, None], "the first one leads"
    assert going[2].finish_reason == "cancelled"
    assert model.generate([3], 2).complete().finish_reason == "length"


def test_cancelling_all_within_a_layer(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    going = begin(model)
    original = KvCache.attend_each

    def cancelling(*arguments: Any) -> Any:
        model.cancel()
        return original(*arguments)

    monkeypatch.setattr(KvCache, "attend_each", cancelling)
    assert going[0].next_of_each(going[1:]) == [None] * 3
    assert [each.finish_reason for each in going] == ["cancelled"] * 3
    monkeypatch.undo()
    assert len(model.generate([3], 2).complete().ids) == 2


def test_an_error_ends_all_of_them(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    going = begin(model)

    def failing(*_: Any) -> Any:
        raise ReadFailed("the disk is gone")

    monkeypatch.setattr(KvCache, "attend_each", failing)
    with pytest.raises(ReadFailed, match="the disk is gone"):
        going[0].next_of_each(going[1:])
    monkeypatch.undo()
    assert all(each.pending is None for each in going)
    assert len(model.generate([3], 2).complete().ids) == 2
