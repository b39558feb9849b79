"""Answers for asyncio: the same tokens, the loop stays free, and a cancelled wait ends the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flashllm
from flashllm.engine.local import Model
from flashllm.errors import EngineBusy, ModelClosed, ReadFailed, UsageError
from flashllm.kv_cache.dram import KvCache

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
OTHER = [8, 61, 33, 12]


@pytest.fixture
def roomy(sparse_model: Path) -> Iterator[Model]:
    with flashllm.open_model(sparse_model, contexts=2) as model:
        yield model


class Gate:
    """Holds the engine before a layer until it is opened."""

    def __init__(self, model: Model, layer: int = 1) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._layer = layer
        model.decoder.before_layer = self._wait
        self.layers_after = 0

    def _wait(self, layer: int) -> None:
        if self.opened.is_set():
            self.layers_after += 1
        elif layer == self._layer:
            self.reached.set()
            assert self.opened.wait(60)


async def until_set(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.002)


async def test_tokens_are_those_of_generate(model: Model) -> None:
    expected = model.generate(PROMPT, 20).complete()
    answer = await model.agenerate(PROMPT, max_tokens=20)
    assert [token.id async for token in answer] == expected.ids
    assert (answer.finish_reason, answer.text, answer.ids) == ("length", "", expected.ids)
    assert (answer.usage.prompt_tokens, answer.usage.answer_tokens) == (10, 20)
    assert answer.report()["decode"]["tokens"] == 19
    assert repr(answer) == "<AsyncGeneration: 20 tokens, length>"


async def test_the_loop_is_free_while_a_token_is_computed(model: Model) -> None:
    gate = Gate(model)
    answer = await model.agenerate(PROMPT, max_tokens=3)
    await anext(answer)  # a prompt calls nothing before its layers
    task = asyncio.ensure_future(anext(answer))
    await until_set(gate.reached)  # this loop ran meanwhile
    assert not task.done()
    gate.opened.set()
    assert (await task).id == answer.ids[1]
    model.decoder.before_layer = None


async def test_nothing_is_computed_before_it_is_asked_for(model: Model) -> None:
    answer = await model.agenerate(PROMPT, max_tokens=30)
    steps = model.decoder.steps
    async for _ in answer:
        steps += 1
        await asyncio.sleep(0.002)
        assert model.decoder.steps == steps
        if len(answer.ids) == 5:
            break
    await answer.aclose()
    assert (answer.finish_reason, [token async for token in answer]) == ("cancelled", [])


@pytest.mark.parametrize("layer", [0, 2])
async def test_a_cancelled_task_ends_the_token_within_a_layer(model: Model, layer: int) -> None:
    gate = Gate(model, layer)
    answer = await model.agenerate(PROMPT, max_tokens=100)
    await anext(answer)
    task = asyncio.ensure_future(anext(answer))
    await until_set(gate.reached)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done(), "the layer is computed to its end, and waited for"
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.layers_after <= 1
    assert answer.finish_reason == "cancelled"
    model.decoder.before_layer = None
    assert len(model.generate(OTHER, 5).complete().ids) == 5, "the context is free"


async def test_a_time_limit_stops_a_prompt(model: Model) -> None:
    reached, opened = threading.Event(), threading.Event()

    def hold(_done: float, _total: int) -> None:
        reached.set()
        assert opened.wait(60)

    async def open_later() -> None:
        await until_set(reached)
        await asyncio.sleep(0.05)
        opened.set()

    opener = asyncio.ensure_future(open_later())
    answer = await model.agenerate(PROMPT * 5, on_prefill=hold)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await answer.complete()
    await opener
    assert (answer.finish_reason, answer.ids) == ("cancelled", [])
    assert len(model.generate(OTHER, 5).complete().ids) == 5


async def test_two_answers_at_once_are_those_of_each_alone(
    sparse_model: Path, roomy: Model
) -> None:
    expected = []
    for prompt in (PROMPT, OTHER):
        with flashllm.open_model(sparse_model) as alone:
            expected.append(alone.generate(prompt, 20).complete().ids)

    async def ask(prompt: list[int]) -> list[int]:
        context = roomy.new_context() if prompt is OTHER else None
        answer = await roomy.agenerate(prompt, max_tokens=20, context=context)
        return (await answer.complete()).ids

    assert await asyncio.gather(ask(PROMPT), ask(OTHER)) == expected


async def test_a_second_answer_in_a_context_is_refused(model: Model) -> None:
    first = await model.agenerate(PROMPT, max_tokens=5)
    await anext(first)
    with pytest.raises(EngineBusy):
        await model.agenerate(OTHER)
    assert len((await first.complete()).ids) == 5
    assert len((await (await model.agenerate(OTHER, max_tokens=3)).complete()).ids) == 3


async def test_a_loop_that_is_left_frees_the_context(model: Model) -> None:
    async for _ in await model.agenerate(PROMPT, max_tokens=50):
        break
    assert len(model.generate(OTHER, 5).complete().ids) == 5


async def test_errors_come_out_where_a_token_is_awaited(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="outside the vocabulary"):
        await model.agenerate([9999])
    answer = await model.agenerate(PROMPT)
    await anext(answer)

    def broken(*_: Any) -> int:
        raise ReadFailed("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(KvCache, "attend_projected", broken)
        with pytest.raises(ReadFailed, match="gone"):
            await anext(answer)
    assert [token async for token in answer] == []


async def test_a_closed_model_says_so(sparse_model: Path) -> None:
    with await asyncio.to_thread(flashllm.open_model, sparse_model) as model:
        answer = await model.agenerate(PROMPT)
        await anext(answer)
    with pytest.raises(ModelClosed):
        await anext(answer)
    with pytest.raises(ModelClosed):
        await model.agenerate(PROMPT)


async def test_achat_is_chat(demo: Path) -> None:
    with flashllm.open_model(demo) as model:
        messages: list[flashllm.Message] = [{"role": "user", "content": "What does river mean?"}]
        expected = model.chat(messages, max_tokens=12).complete()
        answer = await (await model.achat(messages, max_tokens=12)).complete()
        assert (answer.text, answer.ids) == (expected.text, expected.ids)
        assert answer.message == {"role": "assistant", "content": expected.text}
        assert answer.dropped_messages == 0
