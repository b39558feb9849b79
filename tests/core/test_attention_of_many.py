"""Attention of several tokens that follow one another: the bits that each has alone."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm import _core
from flashllm.core.numpy_twin import kernels as numpy_core
from flashllm.dtypes import DTYPES, GROUP_BYTES

Make = Callable[..., Any]
# Heads, heads of keys, columns, positions, tokens, window.
SHAPES = {
    "a whole prompt": (4, 4, 64, 130, 130, 0),
    "after others, heads that share": (6, 2, 32, 165, 40, 0),
    "one token": (2, 1, 96, 70, 1, 0),
    "the first": (3, 3, 32, 1, 1, 0),
    "a window within": (8, 2, 128, 300, 33, 60),
    "a window that some have left": (2, 2, 64, 100, 100, 64),
    "more heads than a part has": (71, 1, 32, 90, 5, 0),
    "wide heads": (2, 1, 288, 80, 20, 0),
}


class Case:
    """Random rows of a layer, and the queries of its last tokens."""

    def __init__(self, dtype: str, shape: tuple[int, ...], seed: int = 0) -> None:
        heads, self.kv_heads, self.columns, self.end, self.tokens, self.window = shape
        self.dtype, self.width, self.scale = dtype, heads * self.columns, 0.2
        rng = np.random.default_rng(seed)
        count = self.kv_heads * self.end * self.columns
        nbytes = self.kv_heads * (self.end + 3) * _core.row_bytes(dtype, self.columns)
        # What is not written yet is anything: it must never be looked at.
        self.rows = np.full((2, nbytes), 255, np.uint8)
        writer = _core.Kernels(1)
        for cache in self.rows:
            floats = rng.standard_normal(count).astype(np.float32)
            writer.write_head_rows(floats, dtype, self.columns, self.kv_heads, 0, cache)
        self.query = rng.standard_normal((self.tokens, self.width)).astype(np.float32)
        self.sinks: np.ndarray | None = None

    def with_sinks(self) -> Case:
        """The same, with a score of no position for each head."""
        self.sinks = np.linspace(-2, 5, self.width // self.columns).astype(np.float32)
        return self

    def together(self, kernels: Any, **changes: Any) -> np.ndarray:
        out = np.full(self.query.size, np.nan, np.float32)
        arguments: dict[str, Any] = {
            "query": self.query.ravel(), "keys": self.rows[0], "values": self.rows[1],
            "dtype": self.dtype, "columns": self.columns, "kv_heads": self.kv_heads,
            "tokens": self.tokens, "end": self.end, "window": self.window, "scale": self.scale,
            "out": out, "sinks": self.sinks,
        } | changes  # fmt: skip
        kernels.attend_many(**arguments)
        return np.asarray(arguments["out"]).reshape(self.tokens, -1)

    def alone(self, kernels: Any) -> np.ndarray:
        out = np.full(self.query.shape, np.nan, np.float32)
        for token, query in enumerate(self.query):
            last = self.end - self.tokens + token + 1
            first = max(last - self.window, 0) if self.window else 0
            kernels.attend(
                query, *self.rows, self.dtype, self.columns, self.kv_heads, first, last, self.scale,
                out[token], self.sinks,
            )  # fmt: skip
        return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_has_the_bits_that_it_has_alone(dtype: str, shape: str) -> None:
    case = Case(dtype, SHAPES[shape])
    for isa in _core.available_isas():
        for threads in (1, 3):
            kernels = _core.Kernels(threads, isa)
            assert np.array_equal(case.together(kernels), case.alone(kernels)), (isa, threads)
            kernels.close()
    without, kernels = case.together(_core.Kernels(2)), _core.Kernels(2)
    case.with_sinks()
    assert np.array_equal(case.together(kernels), case.alone(kernels))
    assert not np.array_equal(case.together(kernels), without)


@settings(max_examples=60, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    sharing=st.integers(1, 5),
    columns=st.integers(1, 140),
    tokens=st.integers(1, 90),
    before=st.integers(0, 150),
    window=st.integers(0, 100),
    dtype=st.sampled_from(DTYPES),
    sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape_has_these_bits_and_agrees_with_the_twin(
    kv_heads: int,
    sharing: int,
    columns: int,
    tokens: int,
    before: int,
    window: int,
    dtype: str,
    sinks: bool,
    seed: int,
) -> None:
    shape = (kv_heads * sharing, kv_heads, columns, before + tokens, tokens, window)
    case = Case(dtype, shape, seed)
    if sinks:
        case.with_sinks()
    expected = case.together(numpy_core.Kernels())
    # Beside groups a query has 14 bits: of 140 columns, at this scale, that is 3e-4 of a score
    # in the mean; of the worst of many elements six times as much, and values are 3 apart or so.
    tolerance = 4e-3 if dtype in GROUP_BYTES else 1e-5
    for isa in _core.available_isas():
        kernels = _core.Kernels(2, isa)
        found = case.together(kernels)
        assert np.array_equal(found, case.alone(kernels))
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
        kernels.close()


@pytest.mark.parametrize("scale", [0.2, 60.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_may_be_cut_anywhere(dtype: str, scale: float) -> None:
    """Its tokens in two pieces, the second of which finds the first one's rows there.

    With the larger scale most shares of the softmax are zero.
    """
    whole = Case(dtype, (4, 2, 64, 150, 150, 0))
    kernels = _core.Kernels(2)
    whole.scale = scale
    expected = whole.together(kernels)
    assert np.array_equal(expected, whole.alone(kernels))
    for first in (1, 7, 63, 64, 65, 149):
        for begin, end in ((0, first), (first, 150)):
            piece = np.ascontiguousarray(whole.query[begin:end]).ravel()
            out = np.empty_like(piece)
            kernels.attend_many(piece, *whole.rows, dtype, 64, 2, end - begin, end, 0, scale, out)
            assert np.array_equal(out.reshape(end - begin, -1), expected[begin:end])


WRONG = {
    "no tokens": ({"tokens": 0}, ValueError),
    "tokens negative": ({"tokens": -1}, ValueError),
    "tokens that divide nothing": ({"tokens": 7}, ValueError),
    "as many tokens as there can be": ({"tokens": (1 << 63) - 1}, ValueError),
    "a window below 0": ({"window": -1}, ValueError),
    "end beyond the rows": ({"end": 24}, IndexError),
    "end at the largest": ({"end": (1 << 63) - 1}, IndexError),
    "more tokens than positions": ({"end": 9}, IndexError),
    "nothing seen": ({"end": 0}, IndexError),
    "no heads": ({"kv_heads": 0}, ValueError),
    "heads that divide nothing": ({"kv_heads": 5}, ValueError),
    "no columns": ({"columns": 0}, ValueError),
    "values shorter": ({"values": np.zeros(3 * 160, np.uint8)}, ValueError),
    "out shorter": ({"out": np.zeros(1080, np.float32)}, ValueError),
    "nothing asked": (
        {"query": np.zeros(0, np.float32), "out": np.zeros(0, np.float32)},
        ValueError,
    ),
    "dtype unknown": ({"dtype": "f64"}, ValueError),
    "a query of another type": ({"query": np.zeros(1200, np.float64)}, TypeError),
    "sinks of fewer heads": ({"sinks": np.zeros(2, np.float32)}, ValueError),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_sizes_raise(make_kernels: Make, wrong: str) -> None:
    changes, error = WRONG[wrong]
    kernels = make_kernels(2)
    case = Case("f32", (3, 3, 40, 20, 10, 0))
    assert np.isfinite(case.together(kernels)).all()
    out = np.full(1200, 7, np.float32)
    with pytest.raises(error):
        case.together(kernels, **({"out": out} | changes))
    assert (out == 7).all(), "nothing was written"


def test_closed_kernels_attend_no_more(core: ModuleType) -> None:
    kernels = core.Kernels()
    case = Case("f32", (1, 1, 4, 2, 2, 0))
    kernels.close()
    with pytest.raises(ValueError, match="closed"):
        case.together(kernels)
