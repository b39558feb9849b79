"""Attention over rows in runs: the bits of one piece, whatever the runs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm import _core
from flashllm.core.numpy_twin import kernels as numpy_core
from flashllm.dtypes import DTYPES, GROUP_BYTES

Make = Callable[..., Any]


class Case:
    """Rows of a layer in one piece and in pages in any order; the queries of its last tokens."""

    def __init__(
        self,
        dtype: str,
        kv_heads: int,
        sharing: int,
        columns: int,
        end: int,
        tokens: int,
        seed: int,
    ) -> None:
        self.dtype, self.kv_heads, self.columns, self.end = dtype, kv_heads, columns, end
        self.tokens = tokens
        rng = np.random.default_rng(seed)
        self.row = _core.row_bytes(dtype, columns)
        self.rows = np.full((2, kv_heads * end * self.row), 255, np.uint8)
        writer = _core.Kernels(1)
        for cache in self.rows:
            floats = rng.standard_normal(kv_heads * end * columns).astype(np.float32)
            writer.write_head_rows(floats, dtype, columns, kv_heads, 0, cache)
        self.query = rng.standard_normal(tokens * kv_heads * sharing * columns).astype(np.float32)
        self.sinks = np.linspace(-2, 5, kv_heads * sharing).astype(np.float32)
        self.cut(rng)

    def cut(self, rng: np.random.Generator, page_rows: int = 16) -> None:
        """Pages of [keys, values] in a random order, with something behind each."""
        pages, self.page_rows = -(-self.end // page_rows), page_rows
        self.part, self.page = page_rows * self.row, 2 * page_rows * self.row + 5
        places = rng.permutation(self.kv_heads * pages).reshape(self.kv_heads, pages)
        self.pages = np.full(places.size * self.page, 255, np.uint8)
        runs = []
        layer = self.rows.reshape(2, self.kv_heads, self.end, self.row)
        for head in range(self.kv_heads):
            for page, place in enumerate(places[head].tolist()):
                at = place * self.page
                rows = layer[:, head, page * page_rows : (page + 1) * page_rows]
                for kind in range(2):
                    begin = at + kind * self.part
                    self.pages[begin : begin + rows[kind].size] = rows[kind].ravel()
                runs.append((at, at + self.part, rows.shape[1]))
        self.runs = np.array(runs, np.int64)
        self.ends = np.arange(1, self.kv_heads + 1, dtype=np.int32) * pages

    def without(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Runs and their ends, without the first positions."""
        pages, (skip, rest) = self.ends[0], divmod(first, self.page_rows)
        runs = self.runs.reshape(self.kv_heads, pages, 3)[:, skip:].copy()
        runs[:, 0] += np.array([rest * self.row, rest * self.row, -rest])
        ends = np.arange(1, self.kv_heads + 1) * (pages - skip)
        return runs.reshape(-1, 3), ends.astype(np.int32)

    def in_runs(self, kernels: Any, first: int = 0, **changes: Any) -> np.ndarray:
        runs, ends = self.without(first)
        arguments: dict[str, Any] = {
            "query": self.query, "keys": self.pages, "values": self.pages, "dtype": self.dtype,
            "columns": self.columns, "runs": runs, "run_ends": ends, "scale": 0.2,
            "out": np.full_like(self.query, np.nan), "sinks": self.sinks,
        } | changes  # fmt: skip
        attend = kernels.attend_runs
        if "tokens" in arguments:
            attend = kernels.attend_many_runs
        attend(**arguments)
        return np.asarray(arguments["out"])

    def in_one_piece(self, kernels: Any, first: int = 0, window: int = 0) -> np.ndarray:
        out = np.full_like(self.query, np.nan)
        cache = *self.rows, self.dtype, self.columns, self.kv_heads
        rest = 0.2, out, self.sinks
        if self.tokens == 1:
            kernels.attend(self.query, *cache, first, self.end, *rest)
        else:
            kernels.attend_many(self.query, *cache, self.tokens, self.end, window, *rest)
        return out


@settings(max_examples=60, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    sharing=st.integers(1, 4),
    columns=st.integers(1, 140),
    end=st.integers(1, 200),
    hidden=st.integers(0, 199),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_one_token_has_the_bits_of_one_piece(
    kv_heads: int, sharing: int, columns: int, end: int, hidden: int, dtype: str, seed: int
) -> None:
    case, first = Case(dtype, kv_heads, sharing, columns, end, 1, seed), min(hidden, end - 1)
    twin = case.in_runs(numpy_core.Kernels(), first)
    tolerance = 1e-3 if dtype in GROUP_BYTES else 1e-5
    for isa in _core.available_isas():
        kernels = _core.Kernels(2, isa)
        found = case.in_runs(kernels, first)
        assert np.array_equal(found, case.in_one_piece(kernels, first))
        np.testing.assert_allclose(found, twin, atol=tolerance, rtol=0)
        kernels.close()


@settings(max_examples=40, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    sharing=st.integers(1, 4),
    columns=st.integers(1, 140),
    tokens=st.integers(2, 90),
    before=st.integers(0, 150),
    window=st.integers(0, 100),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_several_tokens_have_the_bits_of_one_piece(
    kv_heads: int,
    sharing: int,
    columns: int,
    tokens: int,
    before: int,
    window: int,
    dtype: str,
    seed: int,
) -> None:
    case = Case(dtype, kv_heads, sharing, columns, before + tokens, tokens, seed)
    # Positions that no token sees may be left out, whole pages of them or not.
    unseen = max(before + 1 - window, 0) if window else 0
    twin = case.in_runs(numpy_core.Kernels(), tokens=tokens, window=window)
    tolerance = 1e-3 if dtype in GROUP_BYTES else 1e-5
    for isa in _core.available_isas():
        kernels = _core.Kernels(2, isa)
        expected = case.in_one_piece(kernels, window=window)
        for first in {0, unseen}:
            found = case.in_runs(kernels, first, tokens=tokens, window=window)
            assert np.array_equal(found, expected)
        np.testing.assert_allclose(found, twin, atol=tolerance, rtol=0)
        kernels.close()


def test_each_head_has_its_own_rows(make_kernels: Make) -> None:
    """A choice of rows, one by one and of other numbers in each head, against those alone."""
    kernels = make_kernels(2)
    case = Case("f32", 2, 3, 24, 100, 1, 4)
    layer = case.rows.reshape(2, 2, 100, case.row)
    chosen = [np.array([3, 4, 17, 99]), np.array([0])]
    runs = [(head * 100 + at) * case.row for head in range(2) for at in chosen[head].tolist()]
    out = np.empty_like(case.query)
    triples = np.array([(at, at, 1) for at in runs], np.int64)
    ends = np.array([4, 5], np.int32)
    kernels.attend_runs(case.query, *case.rows, "f32", 24, triples, ends, 0.2, out, case.sinks)
    query, sinks = case.query.reshape(2, 3, 24), case.sinks.reshape(2, 3, 1)
    for head in range(2):
        keys, values = np.ascontiguousarray(layer[:, head, chosen[head]]).view(np.float32)
        scores = np.hstack([0.2 * query[head] @ keys.T, sinks[head]])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = weights[:, :-1] @ values
        np.testing.assert_allclose(out.reshape(2, 3, 24)[head], expected, atol=1e-6)


_MOST = (1 << 63) - 1
WRONG = {
    "keys before the bytes": (0, -1, IndexError),
    "values before the bytes": (1, -1, IndexError),
    "keys behind the bytes": (0, 1 << 40, IndexError),
    "values behind the bytes": (1, _MOST, IndexError),
    "more rows than there are": (2, 1 << 40, IndexError),
    "rows without end": (2, _MOST, IndexError),
    "no rows": (2, 0, ValueError),
    "rows below none": (2, -16, ValueError),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("tokens", [1, 20])
def test_runs_outside_are_refused(make_kernels: Make, wrong: str, tokens: int) -> None:
    number, value, error = WRONG[wrong]
    case = Case("f16", 2, 2, 16, 40, tokens, 0)
    kernels, out = make_kernels(2), np.full_like(case.query, 7)
    case.runs[4, number] = value
    more = {"tokens": tokens, "window": 0} if tokens > 1 else {}
    with pytest.raises(error):
        case.in_runs(kernels, out=out, **more)
    assert (out == 7).all(), "nothing was written"


SHAPES = {
    "ends that fall": ({"run_ends": np.array([4, 3], np.int32)}, ValueError),
    "ends beyond the runs": ({"run_ends": np.array([3, 7], np.int32)}, ValueError),
    "a head without runs": ({"run_ends": np.array([6, 6], np.int32)}, ValueError),
    "no heads": ({"run_ends": np.zeros(0, np.int32)}, ValueError),
    "pairs": ({"runs": np.zeros((6, 2), np.int64)}, ValueError),
    "runs of another type": ({"runs": np.zeros((6, 3), np.int32)}, TypeError),
    "a query of another size": ({"query": np.zeros(63, np.float32)}, ValueError),
    "fewer sinks": ({"sinks": np.zeros(3, np.float32)}, ValueError),
    "no columns": ({"columns": 0}, ValueError),
    "heads with different rows": (
        {"run_ends": np.array([2, 6], np.int32), "tokens": 1, "window": 0},
        ValueError,
    ),
    "more tokens than rows": (
        {"query": np.zeros(41 * 64, np.float32), "out": np.zeros(41 * 64, np.float32)}
        | {"tokens": 41, "window": 0},
        IndexError,
    ),
}


@pytest.mark.parametrize("wrong", SHAPES)
def test_what_does_not_fit_is_refused(make_kernels: Make, wrong: str) -> None:
    changes, error = SHAPES[wrong]
    kernels, case = make_kernels(2), Case("f16", 2, 2, 16, 40, 1, 0)
    assert np.isfinite(case.in_runs(kernels)).all()
    with pytest.raises(error):
        case.in_runs(kernels, **changes)
