"""What of a conversation stays in the context between its turns, and that no answer shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from flashllm.errors import ReadFailed, UsageError
from flashllm.kv_cache.dram import KvCache
from flashllm.tokenizer.chat_template import Message

QUESTION = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
END = 90
CHUNK = 16
DRAWN = Sampling(temperature=1.2, repetition_penalty=1.3, seed=7)


@pytest.fixture
def small(sparse_model: Path) -> Iterator[Model]:
    """A model whose prompts go through in chunks of a few tokens."""
    with open_model(sparse_model) as model:
        model.decoder.context.chunk_tokens = CHUNK
        yield model


def after(ids: Sequence[int], answer: Sequence[int], *question: int) -> list[int]:
    """The prompt of the turn behind an answer."""
    return [*ids, *answer, END, *question]


def finished(model: Model, ids: Sequence[int], count: int = 12, **more: Any) -> list[int]:
    generation = model.generate(ids, count, DRAWN, **more)
    list(generation)
    return generation.ids


def stopped(model: Model, ids: Sequence[int], after_tokens: int) -> list[int]:
    generation = model.generate(ids, 100, DRAWN)
    for _ in generation:
        if len(generation.ids) == after_tokens:
            model.cancel()
    assert generation.finish_reason == "cancelled"
    return generation.ids


def played(directory: Path, *questions: Sequence[int], count: int = 12) -> list[list[int]]:
    """Answers of a chat that was never edited, in a model of its own."""
    ids: list[int] = []
    answers: list[list[int]] = []
    with open_model(directory) as model:
        for question in questions:
            ids = after(ids, answers[-1], *question) if answers else [*question]
            answers.append(finished(model, ids, count))
    return answers


def test_a_turn_reads_what_is_new(model: Model) -> None:
    calls: list[tuple[float, int]] = []
    first = finished(model, QUESTION)
    ids = after(QUESTION, first, 4, 5)
    generation = model.generate(ids, 5, on_prefill=lambda done, total: calls.append((done, total)))
    assert generation.reused_tokens == 0  # nothing has run
    list(generation)
    # The last token of an answer that was cut off is drawn, and not computed yet.
    reused = len(QUESTION) + len(first) - 1
    assert generation.reused_tokens == generation.prefill.reused == reused
    assert generation.prefill.tokens == generation.prompt_tokens == len(ids)
    report = generation.report()["prefill"]
    assert (report["tokens"], report["reused_tokens"]) == (len(ids), reused)
    assert calls[-1] == (len(ids) - reused, len(ids) - reused)
    assert len(calls) == model.info.spec.n_layers


def test_a_turn_reads_fewer_bytes(small: Model) -> None:
    """Weights that are in no slot are read once a chunk, whatever is in it."""
    small.release_slots(1 << 40)
    question = QUESTION * 4
    first = small.generate(question, 3)
    list(first)
    ids = after(question, first.ids, 4)
    second = small.generate(ids, 3)
    list(second)
    small.forget()
    fresh = small.generate(ids, 3)
    list(fresh)
    assert first.prefill.bytes_read == fresh.prefill.bytes_read > 0
    assert 0 < second.prefill.bytes_read * 3 <= first.prefill.bytes_read
    assert (second.reused_tokens, fresh.reused_tokens) == (len(question) + 2, 0)


@pytest.mark.parametrize("select", ["all", "predicted"])
def test_the_second_turn_is_that_of_a_fresh_run(demo: Path, select: str) -> None:
    """Exactly computed, a conversation comes to the same in turns and at once."""
    with open_model(demo, select=select, kv_dtype="f32") as model:
        decoder, tokenizer = model.decoder, model.tokenizer
        talk: list[Message] = [{"role": "user", "content": "What does ocean mean?"}]
        first = finished(model, tokenizer.encode_chat(talk), 30)
        talk += [
            {"role": "assistant", "content": tokenizer.decode(first)},
            {"role": "user", "content": "What is a river?"},
        ]
        ids = tokenizer.encode_chat(talk, {1: first})
        kept = decoder.context.tokens.cached_prefix(ids)
        assert kept >= len(first)
        continued = decoder.prefill(ids[kept:], cached=kept)
        whole = decoder.logits(ids)[-1]
        difference = np.abs(continued - whole).max()
        # Predictors leave something out of the first answer's tokens.
        assert difference < 1e-4 if select == "all" else difference > 1e-4


def test_editing_gives_what_a_fresh_chat_gives(sparse_model: Path) -> None:
    others = [[4, 5], [6], [20, 21, 22, 23], [24]]
    with open_model(sparse_model) as model:
        first = finished(model, QUESTION)
        ids = after(QUESTION, first, *others[0])
        second = finished(model, ids)
        longer = after(ids, second, *others[1])
        assert [first, second, finished(model, longer)] == played(
            sparse_model, QUESTION, *others[:2]
        )
        edited = after(QUESTION, first, *others[2])
        other_second = finished(model, edited)
        further = after(edited, other_second, *others[3])
        assert [first, other_second, finished(model, further)] == played(
            sparse_model, QUESTION, *others[2:]
        )
        # The first question too, and one that only differs in its end.
        assert [finished(model, [*QUESTION[:-1], 3])] == played(sparse_model, [*QUESTION[:-1], 3])


def test_regenerating_gives_the_same(model: Model) -> None:
    first = finished(model, QUESTION)
    ids = after(QUESTION, first, 4, 5)
    second = finished(model, ids)
    logits = model.decoder.prefill(ids[len(ids) - 4 :], cached=len(ids) - 4)
    for _ in range(2):
        generation = model.generate(ids, 12, DRAWN)
        list(generation)
        assert generation.ids == second
        assert generation.reused_tokens == len(ids) - 1
    kept = model.decoder.context.tokens.cached_prefix(ids)
    assert (model.decoder.prefill(ids[kept:], cached=kept) == logits).all()


@pytest.mark.parametrize("after_tokens", [1, 2, 9])
def test_stopping_and_going_on_changes_nothing(model: Model, after_tokens: int) -> None:
    expected = finished(model, QUESTION, 20)
    model.forget()
    begun = stopped(model, QUESTION, after_tokens)
    generation = model.generate([*QUESTION, *begun], 20 - after_tokens, DRAWN, answer=len(begun))
    list(generation)
    assert begun + generation.ids == expected
    assert generation.reused_tokens == len(QUESTION) + after_tokens - 1
    # Also where nothing of it is there any more.
    model.forget()
    assert begun + finished(model, [*QUESTION, *begun], 20 - after_tokens, answer=len(begun)) == (
        expected
    )


def test_an_answer_that_was_read_as_a_prompt_is_decoded_to_go_on(model: Model) -> None:
    expected = finished(model, QUESTION, 20)
    model.forget()
    finished(model, after(QUESTION, expected[:9], 4), 2)
    generation = model.generate([*QUESTION, *expected[:9]], 11, DRAWN, answer=9)
    assert [token.id for token in generation] == expected[9:]


def test_text_goes_on_where_it_stopped(demo: Path) -> None:
    with open_model(demo) as model:
        tokenizer = model.tokenizer
        ids = tokenizer.encode_chat([{"role": "user", "content": "What does ocean mean?"}])
        whole = model.generate(ids, 60)
        list(whole)
        stop = whole.text[len(whole.text) // 2 :][:12]
        expected = model.generate(ids, 60, stop=[stop])
        list(expected)
        assert expected.text == whole.text[: whole.text.index(stop)]
        for count in range(1, len(expected.ids)):
            begun = model.generate(ids, count, stop=[stop])
            list(begun)
            more = model.generate([*ids, *begun.ids], 60, stop=[stop], answer=count)
            list(more)
            assert begun.ids + more.ids == expected.ids
            assert (begun.text + more.text, more.finish_reason) == (expected.text, "stop")
        over = model.generate([*ids, *expected.ids], 60, stop=[stop], answer=len(expected.ids))
        assert (list(over), over.finish_reason, over.text) == ([], "stop", "")


Tell = Callable[[float, int], None]
End = Callable[[Model, pytest.MonkeyPatch, int], Tell]


def _cancel(model: Model, _: pytest.MonkeyPatch, layer: int) -> Tell:
    """After so many layers of the second chunk."""
    done_at = CHUNK * (1 + layer / model.info.spec.n_layers)

    def report(done: float, _total: int) -> None:
        if done >= done_at:
            model.cancel()

    return report


def _fail(model: Model, patch: pytest.MonkeyPatch, layer: int) -> Tell:
    calls = 0
    attend = KvCache.append

    def broken(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == model.info.spec.n_layers + 1 + layer:
            raise ReadFailed("the disk is gone")
        return attend(*arguments)

    patch.setattr(KvCache, "append", broken)
    return lambda _done, _total: None


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("end", [_cancel, _fail])
def test_a_prompt_given_up_leaves_what_is_complete(
    small: Model, monkeypatch: pytest.MonkeyPatch, end: End, layer: int
) -> None:
    first = finished(small, QUESTION)
    reused = len(QUESTION) + len(first) - 1
    ids = after(QUESTION, first, *QUESTION * 4)
    expected = finished(small, ids)
    for again in (ids, after(QUESTION, first, 4)):
        small.forget()
        finished(small, QUESTION)
        with monkeypatch.context() as patch:
            generation = small.generate(ids, on_prefill=end(small, patch, layer))
            with contextlib.suppress(ReadFailed):
                assert list(generation) == []
        assert small.decoder.context.length == reused + CHUNK
        following = small.generate(again, 12, DRAWN)
        list(following)
        if again is ids:
            assert (following.reused_tokens, following.ids) == (reused + CHUNK, expected)
        else:
            assert following.reused_tokens == reused + 2  # the last token, and what ends the turn


def test_a_token_given_up_leaves_the_answer_so_far(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = finished(model, QUESTION, 20)
    for count in (1, 5):
        generation = model.generate(QUESTION, 20, DRAWN)
        with monkeypatch.context() as patch:
            for _ in range(count):
                next(generation)
            patch.setattr(model.decoder, "before_layer", _broken_in_layer_1)
            with pytest.raises(ReadFailed):
                next(generation)
        assert model.decoder.context.length == len(QUESTION) + count - 1
        more = finished(model, [*QUESTION, *expected[:count]], 20 - count, answer=count)
        assert expected[:count] + more == expected


def _broken_in_layer_1(layer: int) -> None:
    if layer == 1:
        raise ReadFailed("the disk is gone")


def test_logits_begin_anew(small: Model) -> None:
    first = finished(small, QUESTION)
    ids = after(QUESTION, first, 4)
    logits = small.logits(ids)
    assert (small.logits(ids) == logits).all()
    generation = small.generate(ids, 1)
    list(generation)
    assert generation.reused_tokens == len(ids) - 1


@pytest.mark.parametrize("answer", [-1, 3, 4])
def test_an_answer_has_a_prompt_in_front(model: Model, answer: int) -> None:
    with pytest.raises(UsageError, match="answer"):
        model.generate([1, 2, 3], answer=answer)
