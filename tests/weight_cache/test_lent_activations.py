"""Slots have the memory of a chunk's activations while rows answer, and give it to prompts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flashllm.engine.local import Model, open_model
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.kv_cache.context import Context
from flashllm.large_arrays import LARGE_ARRAYS
from flashllm.planning import plan, prefill_shape
from flashllm.planning.shape_choice import ShapeChoice
from flashllm.planning.slot_allocation import RingLimits
from tests.support.lent_slots import BLOCK, N_BUNDLES, shorten_blocks, stride_of

ROWS = 4
LAYERS = 3
PROMPTS = [[5, 17, 40, 8, 61, 33], [12, 9, 77, 50], [44, 7, 3], [90, 21, 21, 60, 2]]
LATER = [[31, 32, 33, 34], [8, 8, 8]]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch, sparse_model: Path) -> None:
    """And prompts that borrow as much as if they were as long as a chunk."""
    shorten_blocks(monkeypatch, sparse_model)
    monkeypatch.setattr(plan, "STEP_RING", RingLimits(6, 2))


def opened(directory: Path, union_tokens: int, monkeypatch: pytest.MonkeyPatch) -> Model:
    """With room for 100 slots of a layer beside a chunk; steps of more rows read layers whole."""
    monkeypatch.setattr(plan, "union_tokens_of", lambda *_: union_tokens)
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        open_model(directory, memory=10 << 20, contexts=ROWS)
    memory = caught.value.smallest_bytes + LAYERS * 100 * stride_of(directory)
    return open_model(directory, memory=memory, contexts=ROWS)


def slots_now(model: Model) -> list[int]:
    return [model.decoder.pool.layer(number).n_slots for number in range(LAYERS)]


def contexts_of(model: Model) -> list[Context]:
    decoder = model.decoder
    return [decoder.context, *(decoder.new_context() for _ in range(ROWS - 1))]


def answers(model: Model, contexts: list[Context]) -> Iterator[tuple[str, list[int]]]:
    """Prompts, steps, two later prompts in the first contexts, steps; best tokens after each."""
    decoder = model.decoder

    def best(logits: Iterator[np.ndarray]) -> list[int]:
        return [int(each.argmax()) for each in logits]

    tokens = best(decoder.prefill_each(PROMPTS, contexts, [0] * ROWS))
    yield "prompts", tokens
    for prompts in (LATER, []):
        for _ in range(6):
            tokens = best(decoder.decode_each(tokens, contexts))
            yield "step", tokens
        if prompts:
            tokens[:2] = best(decoder.prefill_each(prompts, contexts[:2], [0, 0]))
            yield "prompts", tokens


@pytest.mark.parametrize("union_tokens", [1, ROWS], ids=["whole", "needed"])
def test_steps_have_more_slots_and_the_same_answers(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch, union_tokens: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ShapeChoice, "lends_chunk", False)
        with opened(sparse_model, union_tokens, patch) as model:
            few = sum(slots_now(model))
            assert model.plan.lent_activation_bytes == 0
            expected = list(answers(model, contexts_of(model)))
            without = model.reader_stats()["bytes_useful"]
    with opened(sparse_model, union_tokens, monkeypatch) as model:
        assert model.plan.reads_layers_whole == (union_tokens == 1)
        seen: list[int] = []
        model.decoder.observe_layers(lambda *_: seen.append(sum(slots_now(model))))
        found = []
        for what, tokens in answers(model, contexts_of(model)):
            found.append((what, tokens))
            had, seen[:] = set(seen), []
            if what == "step":
                assert had == {sum(model.plan.slots_per_layer)}
            else:
                assert len(had) == 1
                assert max(had) <= few
            # What was lent is nobody's to release.
            assert model.decoder.bytes_released == 0
        assert found == expected
        assert model.reader_stats()["bytes_useful"] < without


def test_what_steps_hold_is_what_the_file_has(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bundles of each layer, also after a prompt had some of the slots."""
    with opened(sparse_model, 1, monkeypatch) as model:
        for _ in answers(model, contexts_of(model)):
            pass
        pool = model.decoder.pool
        assert len(set(model.plan.slots_per_layer)) == 1
        kept = model.plan.slots_per_layer[0] - BLOCK * max(model.plan.lent_blocks, default=0)
        assert kept < N_BUNDLES
        for layer in range(LAYERS):
            assert set(range(kept)) <= set(pool.layer(layer).resident().tolist())


def test_asking_slots_back_comes_on_top(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(sparse_model, 1, monkeypatch) as model:
        expected = list(answers(model, contexts_of(model)))
    with opened(sparse_model, 1, monkeypatch) as model:
        found, most, stride = [], sum(model.plan.slots_per_layer), stride_of(sparse_model)
        steps = answers(model, contexts_of(model))
        for nbytes in itertools.cycle((0, 40 * stride, 1 << 40)):
            released = model.release_slots(nbytes)
            assert released >= min(nbytes, 40 * stride)
            if (one := next(steps, None)) is None:
                break
            found.append(one)
            assert sum(slots_now(model)) <= most - released // stride
        assert found == expected


def test_a_step_keeps_no_memory_of_a_prompt_s_arrays(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashllm.large_arrays.LEAST_BYTES", 256)

    def keeps(nbytes: int) -> bool:
        """Whether the memory of an array of so many bytes stays after it."""
        array = LARGE_ARRAYS.empty(nbytes // 4)
        del array
        stays = LARGE_ARRAYS.kept_bytes >= nbytes // 4 * 4
        LARGE_ARRAYS.give_back()
        return stays

    with opened(sparse_model, 1, monkeypatch) as model:
        whole = model.plan.prefill.activation_bytes(model.info.spec, ROWS)
        least = whole - model.plan.lent_activation_bytes
        assert 0 < least < whole - 8
        for what, _ in answers(model, contexts_of(model)):
            assert keeps(least)
            assert keeps(least + 8) == (what == "prompts")
            assert not keeps(whole + 8)


def test_short_prompts_borrow_little(sparse_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    shorten_blocks(monkeypatch, sparse_model, has_spare=True)
    monkeypatch.setattr(prefill_shape, "LOGIT_ROWS_MAX", 1)
    with opened(sparse_model, 1, monkeypatch) as model:
        assert model.plan.lent_activation_bytes > 0
        assert model.plan.borrowed_bytes(model.info.spec, 1) == 0
        seen: list[int] = []
        model.decoder.observe_layers(lambda *_: seen.append(sum(slots_now(model))))
        list(model.decoder.prefill_each(PROMPTS, contexts_of(model), [0] * ROWS))
        assert set(seen) == {sum(model.plan.slots_per_layer)}
