"""Several contexts of one model at once: each goes on as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import flashllm
from flashllm.engine.local import Model
from flashllm.engine.sampling import Sampling
from flashllm.errors import UsageError

PROMPTS = ([5, 17, 40], [8, 61, 33, 12, 9, 77, 50], list(range(20, 60)))
LENGTHS = (30, 12, 21)
DRAWN = Sampling(temperature=1.1, seed=3)


@pytest.fixture
def roomy(sparse_model: Path) -> Iterator[Model]:
    with flashllm.open_model(sparse_model, contexts=3) as model:
        yield model


def alone(sparse_model: Path) -> list[list[int]]:
    found = []
    for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
        with flashllm.open_model(sparse_model) as model:
            generation = model.generate(prompt, length, DRAWN)
            found.append([token.id for token in generation])
    return found


def test_three_that_take_turns_get_what_each_gets_alone(sparse_model: Path, roomy: Model) -> None:
    expected = alone(sparse_model)
    assert len({len(ids) for ids in expected}) == 3
    contexts = [None, roomy.new_context(), roomy.new_context()]
    answers = [
        roomy.generate(prompt, length, DRAWN, context=context)
        for prompt, length, context in zip(PROMPTS, LENGTHS, contexts, strict=True)
    ]
    found: list[list[int]] = [[], [], []]
    running = list(range(3))
    while running:
        for number in list(running):
            token = next(answers[number], None)
            if token is None:
                running.remove(number)
            else:
                found[number].append(token.id)
    assert found == expected
    assert [answer.finish_reason for answer in answers] == ["length"] * 3


def test_a_token_costs_what_it_read_itself(roomy: Model) -> None:
    """What other contexts read in between is theirs."""
    contexts = [roomy.new_context(), roomy.new_context()]
    one, other = (
        roomy.generate(prompt, 20, context=context)
        for prompt, context in zip(PROMPTS[:2], contexts, strict=True)
    )
    before = roomy.reader_stats()["bytes_read"]
    for _ in zip(one, other, strict=False):
        pass
    read = roomy.reader_stats()["bytes_read"] - before
    counted = sum(cost.bytes_read for answer in (one, other) for cost in answer.costs)
    counted += one.prefill.bytes_read + other.prefill.bytes_read
    assert counted == read


def test_a_context_goes_on_where_it_was(sparse_model: Path, roomy: Model) -> None:
    context = roomy.new_context()
    first = [token.id for token in roomy.generate(PROMPTS[0], 8, context=context)]
    for _ in roomy.generate(PROMPTS[1], 5):
        pass
    again = [*PROMPTS[0], *first, 7]
    generation = roomy.generate(again, 8, context=context)
    second = [token.id for token in generation]
    assert generation.reused_tokens >= len(PROMPTS[0]) + len(first) - 1
    with flashllm.open_model(sparse_model) as model:
        for _ in model.generate(PROMPTS[0], 8):
            pass
        assert [token.id for token in model.generate(again, 8)] == second


def test_the_plan_has_room_for_them_and_for_no_more(sparse_model: Path, roomy: Model) -> None:
    kept = [roomy.new_context(), roomy.new_context()]
    with pytest.raises(UsageError, match="contexts=3, and as many"):
        roomy.new_context()
    del kept[0]
    assert roomy.new_context().length == 0, "one that was dropped leaves its place"
    kept[0] = roomy.new_context()
    kept[0].close()
    assert roomy.new_context().length == 0, "so does one that was closed"
    with flashllm.open_model(sparse_model) as single:
        more = roomy.plan.split["kv"] - single.plan.split["kv"]
        assert more > 0
        with pytest.raises(UsageError, match="contexts=1, and as many"):
            single.new_context()


def test_a_closed_context_is_refused_and_nobody_else_minds(sparse_model: Path) -> None:
    with flashllm.open_model(sparse_model, contexts=3) as model:
        expected = [token.id for token in model.generate(PROMPTS[0], 4)]
        closed, open_one = model.new_context(), model.new_context()
        answer = model.generate(PROMPTS[1], 4, context=closed)
        next(answer)
        closed.close()
        closed.close()
        with pytest.raises(UsageError, match="this context was closed"):
            next(answer)
        assert list(answer) == [], "it is over"
        with pytest.raises(UsageError, match="this context was closed"):
            model.generate(PROMPTS[1], 4, context=closed)
        found = [token.id for token in model.generate(PROMPTS[0], 4, context=open_one)]
        assert found == expected
        assert answer.ids, "what there was of it stays"
