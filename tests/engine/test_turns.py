"""Who may compute: one answer in a context, from any thread; none is cut off in silence."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flashllm
from flashllm.engine.local import Model
from flashllm.engine.sampling import Sampling
from flashllm.errors import EngineBusy, ModelClosed, ReadFailed, UsageError
from flashllm.kv_cache.dram import KvCache

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
OTHER = [8, 61, 33, 12]
WAIT_SECONDS = 60.0


@pytest.fixture
def roomy(sparse_model: Path) -> Iterator[Model]:
    with flashllm.open_model(sparse_model, contexts=3) as model:
        yield model


def ids_of(model: Model, prompt: list[int], count: int, **more: Any) -> list[int]:
    return [token.id for token in model.generate(prompt, count, **more)]


def in_threads(*work: Callable[[], None]) -> list[BaseException]:
    """Runs all at once; the errors that they raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(one: Callable[[], None]) -> None:
        start.wait(WAIT_SECONDS)
        try:
            one()
        except BaseException as error:  # noqa: BLE001  judged by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=[one]) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    return errors


def test_a_second_answer_in_a_context_is_refused_and_the_first_goes_on(model: Model) -> None:
    expected = ids_of(model, PROMPT, 20)
    first = model.generate(PROMPT, 20)
    found = [next(first).id]
    with pytest.raises(EngineBusy, match="use a context of its own"):
        model.generate(OTHER, 5)
    with pytest.raises(EngineBusy):
        model.logits(OTHER)
    with pytest.raises(EngineBusy):
        model.forget()
    assert found + [token.id for token in first] == expected
    assert first.finish_reason == "length"
    assert len(ids_of(model, OTHER, 5)) == 5


def test_the_last_token_frees_the_context(model: Model) -> None:
    first = model.generate(PROMPT, 2)
    next(first)
    next(first)
    assert first.finish_reason == "length"
    assert len(ids_of(model, OTHER, 3)) == 3, "although the end of the first was not asked for"
    assert list(first) == []


def test_an_answer_not_begun_holds_its_context_too(model: Model) -> None:
    first = model.generate(PROMPT, 3)
    with pytest.raises(EngineBusy):
        model.generate(OTHER)
    assert len(list(first)) == 3


def test_a_closed_answer_frees_its_context(model: Model) -> None:
    first = model.generate(PROMPT, 50)
    next(first)
    first.close()
    first.close()
    assert (list(first), first.finish_reason) == ([], "cancelled")
    assert len(ids_of(model, OTHER, 5)) == 5


def test_an_abandoned_answer_frees_its_context_at_once(model: Model) -> None:
    expected = ids_of(model, OTHER, 5)
    gc.disable()  # no collection is waited for
    try:
        for _ in model.generate(PROMPT, 50):
            break
        model.generate(PROMPT, 50)
        next(model.generate(PROMPT, 50))
        assert ids_of(model, OTHER, 5) == expected
    finally:
        gc.enable()


def test_an_answer_that_failed_frees_its_context(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids_of(model, PROMPT, 5)
    first = model.generate(OTHER, 5)
    next(first)
    with monkeypatch.context() as patch:
        patch.setattr(KvCache, "attend_projected", _disk_is_gone)
        with pytest.raises(ReadFailed):
            next(first)
    assert (list(first), first.finish_reason) == ([], None)
    assert "failed" in repr(first)
    assert ids_of(model, PROMPT, 5) == expected


def _disk_is_gone(*_: Any) -> int:
    raise ReadFailed("the disk is gone")


def test_two_threads_of_one_context_one_is_refused_and_one_is_whole(model: Model) -> None:
    expected = ids_of(model, PROMPT, 30)
    for _ in range(5):
        whole: list[list[int]] = []
        decided = threading.Barrier(2)

        def answer(whole: list[list[int]] = whole, decided: threading.Barrier = decided) -> None:
            try:
                generation = model.generate(PROMPT, 30)
            finally:
                decided.wait(WAIT_SECONDS)
            whole.append([token.id for token in generation])

        errors = in_threads(answer, answer)
        assert [type(error) for error in errors] == [EngineBusy]
        assert whole == [expected]


def test_threads_with_contexts_of_their_own_are_all_whole(sparse_model: Path, roomy: Model) -> None:
    drawn = Sampling(temperature=1.1, seed=3)
    prompts = (PROMPT, OTHER, list(range(20, 60)))
    expected = []
    for prompt in prompts:
        with flashllm.open_model(sparse_model) as alone:
            expected.append(ids_of(alone, prompt, 40, sampling=drawn))
    found: list[list[int]] = [[], [], []]

    def answer(number: int) -> None:
        context = roomy.new_context() if number else None
        found[number] = ids_of(roomy, prompts[number], 40, sampling=drawn, context=context)

    assert in_threads(*[lambda n=n: answer(n) for n in range(3)]) == []
    assert found == expected


def test_one_answer_shared_by_threads_loses_no_token(model: Model) -> None:
    expected = ids_of(model, PROMPT, 60)
    generation = model.generate(PROMPT, 60)
    found: list[int] = []
    assert in_threads(*[lambda: found.extend(token.id for token in generation)] * 3) == []
    assert sorted(found) == sorted(expected)
    assert generation.ids == expected


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_stopped_answer_leaves_those_of_other_contexts_alone(
    sparse_model: Path, roomy: Model, layer: int
) -> None:
    with flashllm.open_model(sparse_model) as alone:
        expected = ids_of(alone, OTHER, 30)
    one = roomy.generate(PROMPT, 50, context=roomy.new_context())
    other = roomy.generate(OTHER, 30, context=roomy.new_context())
    found = [next(other).id]
    next(one)

    def stop(index: int) -> None:
        if index == layer:
            one.close()

    roomy.decoder.before_layer = stop
    # Behind its last layer a token is not stopped any more.
    assert len(list(one)) <= (layer == 2)
    assert one.finish_reason == "cancelled"
    roomy.decoder.before_layer = None
    assert found + [token.id for token in other] == expected


def test_a_failed_answer_leaves_those_of_other_contexts_alone(
    sparse_model: Path, roomy: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that it had begun are waited for, so that another token may begin some."""
    with flashllm.open_model(sparse_model) as alone:
        expected = ids_of(alone, OTHER, 20)
    one = roomy.generate(PROMPT, 50, context=roomy.new_context())
    other = roomy.generate(OTHER, 20, context=roomy.new_context())
    found = [next(other).id]
    next(one)
    calls = 0
    attend = KvCache.attend_projected

    def fails_in_the_second_layer(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return _disk_is_gone() if calls == 2 else attend(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(KvCache, "attend_projected", fails_in_the_second_layer)
        with pytest.raises(ReadFailed):
            next(one)
    assert found + [token.id for token in other] == expected


def test_cancel_ends_all_answers_and_none_that_begin_later(roomy: Model) -> None:
    contexts = [roomy.new_context(), roomy.new_context()]
    answers = [roomy.generate(PROMPT, 50, context=context) for context in contexts]
    for answer in answers:
        next(answer)
    roomy.cancel()
    assert [list(answer) for answer in answers] == [[], []]
    assert [answer.finish_reason for answer in answers] == ["cancelled"] * 2
    assert len(ids_of(roomy, PROMPT, 5, context=contexts[0])) == 5


def test_what_a_prompt_calls_back_cannot_compute(roomy: Model) -> None:
    other = roomy.generate(OTHER, 5, context=roomy.new_context())
    problems: list[type[BaseException]] = []

    def call_back(_done: float, _total: int) -> None:
        for work in (lambda: next(other), roomy.close):
            try:
                work()
            except EngineBusy as error:
                problems.append(type(error))

    assert len(list(roomy.generate(PROMPT, 3, on_prefill=call_back))) == 3
    assert set(problems) == {EngineBusy}
    assert len(list(other)) == 5


def test_a_context_of_another_model_is_refused(sparse_model: Path, roomy: Model) -> None:
    with (
        flashllm.open_model(sparse_model) as model,
        pytest.raises(UsageError, match="another model"),
    ):
        model.generate(PROMPT, context=roomy.new_context())


def test_what_is_used_after_close_says_so(sparse_model: Path) -> None:
    with flashllm.open_model(sparse_model) as model:
        finished = model.generate(PROMPT, 3).complete()
        unfinished = model.generate(PROMPT, 30)
        next(unfinished)
        before = model.io_report()
    model.close()
    for use in (
        lambda: model.generate(PROMPT),
        lambda: model.logits(PROMPT),
        lambda: next(unfinished),
        model.new_context,
        model.forget,
        model.neuron_map,
        model.read_latencies,
    ):
        with pytest.raises(ModelClosed, match="was closed; open it again"):
            use()
    # What was known stays known.
    assert finished.report()["io"] == model.io_report() == before
    assert (finished.finish_reason, len(finished.ids)) == ("length", 3)
    assert unfinished.finish_reason is None
    assert model.rates().work is not None
    assert model.cautions() is not None
    model.cancel()


def test_closing_from_another_thread_ends_the_token_and_is_no_silence(sparse_model: Path) -> None:
    model = flashllm.open_model(sparse_model)
    computing, errors = threading.Event(), []

    def answer() -> None:
        try:
            while True:
                for _ in model.generate(PROMPT, 100):
                    computing.set()
        except ModelClosed as error:
            errors.append(error)

    thread = threading.Thread(target=answer)
    thread.start()
    assert computing.wait(WAIT_SECONDS)
    model.close()
    thread.join(WAIT_SECONDS)
    assert len(errors) == 1
