"""What is above its limit, in both cores, against plain numpy."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flashllm.core.numpy_twin import kernels

FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, float("inf"), float("nan")])
PAIRS = st.integers(0, 200).flatmap(
    lambda n: st.tuples(*[hnp.arrays(np.float32, n, elements=FLOATS)] * 2)
)


def ids_above(core: ModuleType, scores: np.ndarray, limits: np.ndarray) -> list[int]:
    ids = np.full(len(scores), -7, np.int32)
    return ids[: core.ids_above(scores, limits, ids)].tolist()


def ranked_above(core: ModuleType, scores: np.ndarray, limits: np.ndarray) -> list[int]:
    keys = np.full(len(scores), -7, np.int64)
    found = keys[: core.keys_above(scores, limits, keys)]
    return np.sort(found).astype(np.int32).tolist()


@settings(max_examples=200, deadline=None)
@given(PAIRS)
def test_what_is_above_is_found_and_ordered(
    core: ModuleType, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    scores, limits = pair
    assert ids_above(core, scores, limits) == np.flatnonzero(scores > limits).tolist()
    with np.errstate(invalid="ignore", over="ignore"):
        excess = scores - limits
    expected = sorted(np.flatnonzero(excess > 0).tolist(), key=lambda i: (-excess[i], i))
    assert ranked_above(core, scores, limits) == expected


def test_both_cores_write_the_same_keys(core: ModuleType) -> None:
    rng = np.random.default_rng(2)
    scores, limits = rng.standard_normal((2, 16384)).astype(np.float32)
    found = []
    for one in (core, kernels):
        keys = np.zeros(len(scores), np.int64)
        found.append(keys[: one.keys_above(scores, limits, keys)].tolist())
    assert found[0] == found[1]
    assert len(found[0]) > 4000


@pytest.mark.parametrize("name", ["ids_above", "keys_above"])
def test_wrong_arrays(core: ModuleType, name: str) -> None:
    call, out = getattr(core, name), np.int32 if name == "ids_above" else np.int64
    four, five = np.zeros(4, np.float32), np.zeros(5, np.float32)
    for wrong in ((four, five, np.zeros(4, out)), (four, four, np.zeros(5, out))):
        with pytest.raises(ValueError, match="room for"):
            call(*wrong)
    for wrong in (
        (four.astype(np.float64), four, np.zeros(4, out)),
        (four, four, np.zeros(4, np.int16)),
        (four, np.zeros(8, np.float32)[::2], np.zeros(4, out)),
    ):
        with pytest.raises(TypeError):
            call(*wrong)


MASKS = st.tuples(st.integers(0, 6), st.integers(0, 40), st.integers(0, 9), st.integers(0, 5))


@settings(max_examples=200, deadline=None)
@given(shape=MASKS, share=st.sampled_from([0.0, 0.1, 0.5, 1.0]), seed=st.integers(0, 1000))
def test_true_columns_are_those_of_nonzero(
    core: ModuleType, shape: tuple[int, int, int, int], share: float, seed: int
) -> None:
    """Of masks that are columns of a larger one, too."""
    rows, columns, before, behind = shape
    whole = np.random.default_rng(seed).random((rows, before + columns + behind)) < share
    mask = whole[:, before : before + columns]
    _, expected = np.nonzero(mask)
    found = np.full(len(expected) + 3, -7, np.int32)
    ends = np.full(rows, -7, np.int32)
    assert core.true_columns(mask, found, ends) == len(expected)
    assert found.tolist() == [*expected, -7, -7, -7]
    assert ends.tolist() == np.cumsum(np.count_nonzero(mask, axis=1)).tolist()


def test_true_columns_without_room(core: ModuleType) -> None:
    mask = np.ones((3, 20), np.bool_)
    ends = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="more is true than columns has room for, 59"):
        core.true_columns(mask, np.zeros(59, np.int32), ends)
    with pytest.raises(ValueError, match="2 ends for 3 rows"):
        core.true_columns(mask, np.zeros(60, np.int32), ends[:2])


def test_columns_of_a_mask_follow_one_another(core: ModuleType) -> None:
    mask = np.ones((3, 20), np.bool_)[:, ::2]
    with pytest.raises(ValueError, match="must follow one another"):
        core.true_columns(mask, np.zeros(60, np.int32), np.zeros(3, np.int32))


@settings(max_examples=200, deadline=None)
@given(counts=st.lists(st.integers(0, 30), max_size=6), block_ids=st.sampled_from([1, 7, 64]))
def test_runs_end_where_a_block_or_a_vector_does(
    core: ModuleType, counts: list[int], block_ids: int
) -> None:
    rng = np.random.default_rng(len(counts))
    each = [np.sort(rng.choice(200, count, replace=False)) for count in counts]
    ids = np.array([one for of_vector in each for one in of_vector.tolist()], np.int32)
    expected, at = [], 0
    for of_vector in each:
        blocks = [int(one) // block_ids for one in of_vector]
        expected += [at + i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1]]
        at += len(blocks)
        expected += [at] if blocks else []
    ends = np.cumsum(counts).astype(np.int32)
    found = np.full(len(ids) + 2, -7, np.int32)
    assert core.run_ends(ids, ends, block_ids, found) == len(expected)
    assert found[: len(expected)].tolist() == expected


def test_runs_without_room_or_with_wrong_ends(core: ModuleType) -> None:
    ids, ends = np.arange(5, dtype=np.int32), np.array([2, 5], np.int32)
    with pytest.raises(ValueError, match="5 ids, and room for 4 ends"):
        core.run_ends(ids, ends, 64, np.zeros(4, np.int32))
    with pytest.raises(ValueError, match="vector_ends must rise to the number of ids, 5"):
        core.run_ends(ids, ends[:1], 64, np.zeros(5, np.int32))
    with pytest.raises(ValueError, match="vector_ends must not fall"):
        core.run_ends(ids, ends[::-1].copy(), 64, np.zeros(5, np.int32))
    with pytest.raises(ValueError, match="blocks of 0"):
        core.run_ends(ids, ends, 0, np.zeros(5, np.int32))
