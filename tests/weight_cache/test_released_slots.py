"""Slots that are given back while a model is open: other reads, and the same answers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flashllm.engine.local import Model, open_model
from flashllm.options import Select
from flashllm.planning.release import slots_without
from flashllm.planning.slot_allocation import least_slots

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
SECOND = [44, 7, 3, 90, 21, 21, 60]
EVERYTHING = 1 << 40


def answer(model: Model, prompt: list[int], releases: tuple[int, ...] = ()) -> list[int]:
    """Ids of an answer; before each of its first tokens so many bytes are asked for."""
    wanted = iter(releases)
    ids = []
    for token in model.generate(prompt, max_tokens=24):
        ids.append(token.id)
        if (nbytes := next(wanted, None)) is not None:
            model.release_slots(nbytes)
    return ids


def slots_now(model: Model) -> list[int]:
    pool = model.decoder.pool
    return [pool.layer(number).n_slots for number in range(model.info.spec.n_layers)]


@pytest.mark.parametrize("select", ["predicted", "all"])
def test_answers_stay_the_same_whatever_is_given_back(sparse_model: Path, select: Select) -> None:
    with open_model(sparse_model, select=select) as model:
        slot_bytes = model.plan.split["slots"]
        expected = [answer(model, prompt) for prompt in (PROMPT, SECOND)]
        for releases in (
            (slot_bytes // 2,),
            (EVERYTHING,),
            (0,),
            (slot_bytes // 3, EVERYTHING, slot_bytes // 5, 0, EVERYTHING),
        ):
            model.forget()
            assert [answer(model, prompt, releases) for prompt in (PROMPT, SECOND)] == expected


def test_as_much_is_given_back_as_was_asked_for_and_no_more_than_can_be(
    sparse_model: Path,
) -> None:
    with open_model(sparse_model) as model:
        plan, spec = model.plan, model.info.spec
        answer(model, PROMPT)
        stride = model.info.bundle_stride_bytes
        for nbytes in (stride, 100 * stride, plan.split["slots"] // 2):
            given = model.release_slots(nbytes)
            assert nbytes <= given < nbytes + (1 + spec.n_layers) * stride
            assert (sum(plan.slots_per_layer) - sum(slots_now(model))) * stride == given
        least = least_slots(spec, plan.select)
        assert model.release_slots(EVERYTHING) < EVERYTHING
        assert slots_now(model) == [least] * spec.n_layers
        assert model.release_slots(0) == 0
        assert slots_now(model) == list(plan.slots_per_layer)


def test_memory_of_what_is_given_back_is_empty(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        stride = model.info.bundle_stride_bytes
        answer(model, PROMPT)
        pool, planned = model.decoder.pool, model.plan.slots_per_layer
        assert pool.rows.any()
        model.release_slots(EVERYTHING)
        starts = np.cumsum([0, *planned])
        for (begin, end), kept in zip(pairwise(starts), slots_now(model), strict=True):
            first, last = (begin + kept) * stride, end * stride
            pages = pool.rows[-(-first // 4096) * 4096 : last // 4096 * 4096]
            assert not pages.any()


def test_what_a_running_step_does_not_allow_is_done_by_the_next(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        seen = []

        def ask(*_: float) -> None:
            seen.append(model.release_slots(EVERYTHING))

        generation = model.generate(PROMPT, max_tokens=3, on_prefill=ask)
        next(generation)
        assert set(seen) == {0}
        next(generation)
        assert model.release_slots(EVERYTHING) > 0


def test_slots_that_a_prompt_borrows_are_kept(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        plan, spec = model.plan, model.info.spec
    blocks = (1, 0, 1, 0)[: spec.n_layers]
    lending = type(plan)(
        **{name: getattr(plan, name) for name in plan.__slots__} | {"lent_blocks": blocks}
    )
    least = least_slots(spec, "predicted")
    kept = slots_without(lending, spec, 1, EVERYTHING)
    assert kept == [
        max(least + lent * plan.prefill.bundles, least) if slots > least else slots
        for slots, lent in zip(plan.slots_per_layer, blocks, strict=True)
    ]


def test_pinned_bundles_go_in_whole_blocks(sparse_model: Path) -> None:
    with open_model(sparse_model, select="all") as model:
        plan, spec = model.plan, model.info.spec
        stride = model.info.bundle_stride_bytes
        fewer = slots_without(plan, spec, stride, plan.split["slots"] // 2)
        assert sum(fewer) * 2 <= sum(plan.slots_per_layer)
        assert all(count % plan.prefill.bundles == 0 for count in fewer)
