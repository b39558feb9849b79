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
