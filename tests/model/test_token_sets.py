"""What tokens name, cut into blocks, against sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashllm.model.active_set_selectors import ActiveSet
from flashllm.model.token_sets import BlockSlice, TokenSets, of_each
from flashllm.weight_cache.blocks import BLOCK_IDS
from flashllm.weight_cache.rounds import block_ends

NEURONS = 5 * BLOCK_IDS
NAMED = st.lists(st.sets(st.integers(0, NEURONS - 1)), min_size=1, max_size=5)


def ids_of(sets: list[set[int]]) -> list[np.ndarray]:
    return [np.array(sorted(ids), np.int32) for ids in sets]


@given(NAMED, st.integers(1, NEURONS))
def test_blocks_hold_what_each_token_names_there(sets: list[set[int]], block: int) -> None:
    named = TokenSets([ActiveSet(ids) for ids in ids_of(sets)])
    slices = [named.within(first, first + block) for first in range(0, NEURONS, block)]
    for number, whole in enumerate(slices):
        inside = range(number * block, (number + 1) * block)
        parts = np.split(whole.ids, whole.ends[:-1])
        assert [part.tolist() for part in parts] == [sorted(ids & set(inside)) for ids in sets]
        assert np.array_equal(np.bincount(whole.tokens, minlength=len(sets)), list(map(len, parts)))
    for found, ids in zip(of_each(slices), ids_of(sets), strict=True):
        assert np.array_equal(found, ids)


@given(NAMED.filter(any))
def test_sums_are_cut_as_for_each_token_alone(sets: list[set[int]]) -> None:
    whole = TokenSets([ActiveSet(ids) for ids in ids_of(sets)]).within(0, NEURONS)
    expected: list[int] = []
    for start, ids in zip([0, *whole.ends[:-1]], ids_of(sets), strict=True):
        expected += [start + end for end in block_ends(ids) if len(ids)]
    assert whole.block_ends().tolist() == expected


def test_everything_is_named_by_each() -> None:
    ids = np.arange(70, 75, dtype=np.int32)
    whole = BlockSlice.everything(ids, 3)
    assert whole.ends.tolist() == [5, 10, 15]
    wanted = whole.where(whole.ids % 2 == whole.tokens % 2)
    assert [part.tolist() for part in of_each([wanted])] == [[70, 72, 74], [71, 73], [70, 72, 74]]


def test_weights_go_where_their_ids_go() -> None:
    ids = [np.array([3, 70, 71], np.int32), np.array([2, 3, 130], np.int32)]
    weights = [np.float32([0.5, 1, 2]), np.float32([4, 8, 16])]
    named = TokenSets([ActiveSet(i, w) for i, w in zip(ids, weights, strict=True)])
    whole = named.within(0, 72)
    assert whole.ids.tolist() == [3, 70, 71, 2, 3]
    assert whole.weights is not None
    assert whole.weights.tolist() == [0.5, 1, 2, 4, 8]
    wanted = whole.where(whole.ids == 3)
    assert wanted.weights is not None
    assert wanted.weights.tolist() == [0.5, 8]
