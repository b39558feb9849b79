"""Attention of a token of each of several contexts: the bits of each alone, in both cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flashllm import _core
from flashllm.core.numpy_twin import kernels as numpy_core

Make = Callable[..., Any]
DTYPES = ["f32", "f16", "int8", "int4"]
COLUMNS, KV_HEADS, HEADS = 40, 2, 6
CAPACITIES = (33, 1, 90, 7)


class Contexts:
    """Keys and values of contexts of different sizes, and a query of each."""

    def __init__(self, dtype: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        twin = numpy_core.Kernels()
        self.dtype = dtype
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        for caches in (self.keys, self.values):
            for capacity in CAPACITIES:
                floats = rng.standard_normal(KV_HEADS * capacity * COLUMNS).astype(np.float32)
                cache = np.zeros(KV_HEADS * capacity * _core.row_bytes(dtype, COLUMNS), np.uint8)
                twin.write_head_rows(floats, dtype, COLUMNS, KV_HEADS, 0, cache)
                caches.append(cache)
        shape = (len(CAPACITIES), HEADS * COLUMNS)
        self.query = rng.standard_normal(shape).astype(np.float32)
        self.tokens = rng.standard_normal((len(CAPACITIES), KV_HEADS * COLUMNS)).astype(np.float32)
        self.ends = np.array(CAPACITIES, np.int64)
        self.sinks = rng.standard_normal(HEADS).astype(np.float32)

    def attend(self, kernels: Any, **changes: Any) -> np.ndarray:
        arguments: dict[str, Any] = {
            "query": self.query, "keys": self.keys, "values": self.values, "dtype": self.dtype,
            "columns": COLUMNS, "kv_heads": KV_HEADS, "ends": self.ends, "window": 0,
            "scale": 0.2, "out": np.full(self.query.shape, 7, np.float32), "sinks": self.sinks,
        } | changes  # fmt: skip
        kernels.attend_each(**arguments)
        return np.asarray(arguments["out"])

    def write(self, kernels: Any, **changes: Any) -> list[np.ndarray]:
        arguments: dict[str, Any] = {
            "values": self.tokens, "dtype": self.dtype, "columns": COLUMNS, "kv_heads": KV_HEADS,
            "positions": self.ends - 1, "caches": [cache.copy() for cache in self.keys],
        } | changes  # fmt: skip
        kernels.write_head_rows_each(**arguments)
        return list(arguments["caches"])


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_has_the_bits_that_it_has_alone(make_kernels: Make, dtype: str, window: int) -> None:
    kernels, contexts = make_kernels(2), Contexts(dtype)
    found = contexts.attend(kernels, window=window)
    for i, end in enumerate(CAPACITIES):
        alone = np.empty(HEADS * COLUMNS, np.float32)
        rows = contexts.query[i], contexts.keys[i], contexts.values[i], dtype, COLUMNS, KV_HEADS
        first = max(end - window, 0) if window else 0
        kernels.attend(*rows, first, end, 0.2, alone, contexts.sinks)
        assert np.array_equal(found[i], alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_native_agrees_with_its_twin(dtype: str) -> None:
    twin, contexts = numpy_core.Kernels(), Contexts(dtype)
    expected, written = contexts.attend(twin, window=9), contexts.write(twin)
    for isa in _core.available_isas():
        kernels = _core.Kernels(3, isa)
        tolerance = 1e-3 if dtype in ("int8", "int4") else 1e-5
        found = contexts.attend(kernels, window=9)
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
        for cache, other in zip(contexts.write(kernels), written, strict=True):
            assert np.array_equal(cache, other)
        kernels.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_that_are_written_alone(make_kernels: Make, dtype: str) -> None:
    kernels, contexts = make_kernels(2), Contexts(dtype)
    for i, cache in enumerate(contexts.write(kernels)):
        alone = contexts.keys[i].copy()
        row, position = contexts.tokens[i], CAPACITIES[i] - 1
        kernels.write_head_rows(row, dtype, COLUMNS, KV_HEADS, position, alone)
        assert np.array_equal(cache, alone)
        assert not np.array_equal(cache, contexts.keys[i])


LONG = np.array([33, 1, 90, 8], np.int64)
WRONG: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "fewer keys": ({"keys": []}, ValueError),
    "fewer values": ({"values": []}, ValueError),
    "fewer ends": ({"ends": LONG[:3]}, ValueError),
    "fewer rows of out": ({"out": np.zeros((3, HEADS * COLUMNS), np.float32)}, ValueError),
    "a query of no whole heads": (
        {
            "query": np.zeros((4, HEADS * COLUMNS - 1), np.float32),
            "out": np.zeros((4, HEADS * COLUMNS - 1), np.float32),
        },
        ValueError,
    ),
    "out narrower": ({"out": np.zeros((4, COLUMNS), np.float32)}, ValueError),
    "a negative window": ({"window": -1}, ValueError),
    "an end beyond the rows": ({"ends": LONG}, IndexError),
    "nothing seen": ({"ends": LONG * 0}, IndexError),
    "sinks of fewer heads": ({"sinks": np.zeros(2, np.float32)}, ValueError),
    "ends of another type": ({"ends": LONG.astype(np.int32)}, TypeError),
    "keys of another type": ({"keys": [np.zeros(9, np.int8)] * 4}, TypeError),
    "a query of one dimension": ({"query": np.zeros(960, np.float32)}, TypeError),
    "no heads": ({"kv_heads": 0}, ValueError),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_before_any_is_computed(
    make_kernels: Make, wrong: str
) -> None:
    changes, error = WRONG[wrong]
    contexts, out = Contexts("f16"), np.full((4, HEADS * COLUMNS), 7, np.float32)
    with pytest.raises(error):
        contexts.attend(make_kernels(2), **({"out": out} | changes))
    assert (out == 7).all()


def test_the_least_and_largest_numbers_are_refused(make_kernels: Make) -> None:
    contexts, kernels = Contexts("f16"), make_kernels(2)
    for number in (-1 << 63, (1 << 63) - 1):
        with pytest.raises(IndexError):
            contexts.attend(kernels, ends=np.full(4, number))
        with pytest.raises(IndexError):
            contexts.write(kernels, positions=np.full(4, number))


WRONG_ROWS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "fewer positions": ({"positions": LONG[:3]}, ValueError),
    "fewer caches": ({"caches": []}, ValueError),
    "a position beyond the cache": ({"positions": LONG}, IndexError),
    "a negative position": ({"positions": LONG - 2}, IndexError),
    "two tokens of each": ({"columns": COLUMNS // 2}, ValueError),
    "two tokens of each, beyond the cache": (
        {"columns": COLUMNS // 2, "positions": LONG * 9},
        ValueError,
    ),
    "no heads": ({"kv_heads": 0}, ValueError),
    "the same cache twice": ({"caches": [np.zeros(9999 * 80, np.uint8)] * 4}, ValueError),
    "a cache of another type": ({"caches": [np.zeros(9, np.int8) for _ in range(4)]}, TypeError),
    "a bad position and no number": (
        {"positions": LONG, "values": np.full((4, 80), np.nan, np.float32)},
        IndexError,
    ),
    "a row of another length": ({"values": np.zeros((4, 79), np.float32)}, ValueError),
    "positions of another type": ({"positions": LONG.astype(np.int32)}, TypeError),
    "no number": ({"values": np.full((4, 80), np.nan, np.float32)}, ValueError),
    "too large": ({"values": np.full((4, 80), 7e4, np.float32)}, OverflowError),
}


@pytest.mark.parametrize("wrong", WRONG_ROWS)
def test_rows_that_do_not_fit_are_refused(make_kernels: Make, wrong: str) -> None:
    changes, error = WRONG_ROWS[wrong]
    contexts = Contexts("f16")
    caches = [cache.copy() for cache in contexts.keys]
    with pytest.raises(error):
        contexts.write(make_kernels(2), **({"caches": caches} | changes))
    if "values" not in changes or error is IndexError:  # else rows then hold anything
        assert all(map(np.array_equal, caches, contexts.keys))


def test_of_no_contexts_there_is_nothing_to_do(make_kernels: Make) -> None:
    kernels, none = make_kernels(), np.empty((0, 80), np.float32)
    places = np.empty(0, np.int64)
    kernels.attend_each(none, [], [], "f16", 40, 2, places, 0, 1.0, none.copy(), None)
    kernels.write_head_rows_each(none, "f16", 40, 2, places, [])


def test_closed_kernels_refuse(make_kernels: Make) -> None:
    kernels, contexts = make_kernels(), Contexts("f32")
    kernels.close()
    with pytest.raises(ValueError, match="closed"):
        contexts.attend(kernels)
    with pytest.raises(ValueError, match="closed"):
        contexts.write(kernels)
