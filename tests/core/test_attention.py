"""Attention of one token: both cores against torch in 64 bits, and the rows that it reads."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm import _core
from flashllm.core.numpy_twin import kernels as numpy_core

Make = Callable[..., Any]
KV_DTYPES = ["f32", "f16", "int8"]
# Heads, heads of keys, columns, length, first position, capacity.
SHAPES = {
    "heads of their own": (4, 4, 64, 100, 0, 128),
    "heads that share, odd columns": (6, 2, 6, 65, 0, 70),
    "one head of keys": (71, 1, 64, 130, 0, 130),
    "a window": (8, 2, 128, 500, 437, 512),
    "only itself": (4, 2, 32, 9, 8, 16),
    "length 1": (2, 1, 1, 1, 0, 5),
    "context full": (3, 3, 33, 64, 0, 64),
}


class Case:
    """Random rows of a layer, encoded by a core, and the query of the last token."""

    def __init__(self, kernels: Any, dtype: str, shape: tuple[int, ...], seed: int = 0) -> None:
        self.heads, self.kv_heads, self.columns, self.length, self.first, self.capacity = shape
        self.dtype = dtype
        rng = np.random.default_rng(seed)
        rows = (2, self.kv_heads, self.length, self.columns)
        self.floats = rng.standard_normal(rows).astype(np.float32)
        self.query = rng.standard_normal(self.heads * self.columns).astype(np.float32)
        nbytes = self.kv_heads * self.capacity * _core.row_bytes(dtype, self.columns)
        # What is not written yet is anything: it must never be looked at.
        self.rows = np.full((2, nbytes), 255, np.uint8)
        for floats, cache in zip(self.floats, self.rows, strict=True):
            kernels.write_head_rows(floats.ravel(), dtype, self.columns, self.kv_heads, 0, cache)

    @property
    def scale(self) -> float:
        return float(self.columns**-0.5)

    def attend(self, kernels: Any, **changes: Any) -> np.ndarray:
        arguments: dict[str, Any] = {
            "query": self.query, "keys": self.rows[0], "values": self.rows[1],
            "dtype": self.dtype, "columns": self.columns, "kv_heads": self.kv_heads,
            "first": self.first, "end": self.length, "scale": self.scale,
            "out": np.full(self.query.shape, np.nan, np.float32),
        } | changes  # fmt: skip
        kernels.attend(**arguments)
        return np.asarray(arguments["out"])

    def decoded(self) -> torch.Tensor:
        """[2, kv_heads, seen, columns] as the rows say, in 64 bits."""
        row_bytes = _core.row_bytes(self.dtype, self.columns)
        rows = self.rows.reshape(2, self.kv_heads, self.capacity, row_bytes)
        seen = np.ascontiguousarray(rows[:, :, self.first : self.length]).reshape(-1)
        count = len(seen) // row_bytes
        values = np.empty(count * self.columns, np.float32)
        ids = np.arange(count, dtype=np.int32)
        numpy_core.Kernels().decode_rows(seen, row_bytes, 0, self.dtype, ids, self.columns, values)
        shape = (2, self.kv_heads, -1, self.columns)
        return torch.from_numpy(values).double().reshape(shape)

    def exact(self, rows: torch.Tensor) -> np.ndarray:
        """What torch makes of such keys and values."""
        query = torch.from_numpy(self.query).double().view(1, self.heads, 1, self.columns)
        found = torch.nn.functional.scaled_dot_product_attention(
            query, rows[0][None], rows[1][None], scale=self.scale, enable_gqa=True
        )
        return found.view(-1).numpy()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_agrees_with_torch_in_64_bits(make_kernels: Make, dtype: str, shape: str) -> None:
    kernels = make_kernels(2)
    case = Case(kernels, dtype, SHAPES[shape])
    # In int8 the query is rounded too, to 14 bits of the largest of its group.
    tolerance = 2e-4 if dtype == "int8" else 3e-6
    found = case.attend(kernels)
    np.testing.assert_allclose(found, case.exact(case.decoded()), atol=tolerance, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_sinks_take_their_share_of_the_softmax(make_kernels: Make, dtype: str, shape: str) -> None:
    """As one more position with that score, whose value is zero."""
    kernels = make_kernels(2)
    case = Case(kernels, dtype, SHAPES[shape])
    sinks = np.linspace(-3, 9, case.heads).astype(np.float32)
    found = case.attend(kernels, sinks=sinks).reshape(case.heads, -1)
    rows, sharing = case.decoded(), case.heads // case.kv_heads
    query = torch.from_numpy(case.query).double().view(case.heads, case.columns)
    for head in range(case.heads):
        keys, values = rows[:, head // sharing]
        scores = torch.cat([case.scale * keys @ query[head], torch.tensor([float(sinks[head])])])
        expected = scores.softmax(0)[:-1] @ values
        tolerance = 2e-4 if dtype == "int8" else 3e-6
        np.testing.assert_allclose(found[head], expected.numpy(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_rounding_of_keys_and_values_is_bounded(make_kernels: Make, dtype: str) -> None:
    """A value by half a step; a score by half a step times the query, in 1-norm."""
    kernels = make_kernels()
    case = Case(kernels, dtype, SHAPES["one head of keys"])
    floats = torch.from_numpy(case.floats).double()
    step = {"f32": 0.0, "f16": 2.0**-10, "int8": 1.002 / 127}[dtype]
    largest = float(floats.abs().max())
    rounding = (case.decoded() - floats).abs().max()
    assert rounding <= step / 2 * largest
    query = np.abs(case.query.reshape(case.heads, -1)).sum(axis=1).max()
    # Weights change by a factor of at most e to twice the largest change of a score.
    scores = case.scale * query * step / 2 * largest
    bound = step / 2 * largest + (np.exp(2 * scores) - 1) * largest + 2e-4
    assert np.abs(case.attend(kernels) - case.exact(floats)).max() <= bound


@pytest.mark.parametrize("dtype", [*KV_DTYPES, "int4"])
@pytest.mark.parametrize("heads", [(12, 4), (16, 1)])
def test_threads_and_capacity_change_no_bit(
    make_kernels: Make, dtype: str, heads: tuple[int, int]
) -> None:
    """Nor does it whether heads that share keys are multiplied together, or by threads apart."""
    shape = (*heads, 80, 1500, 3)
    found = [
        Case(make_kernels(threads), dtype, (*shape, capacity)).attend(make_kernels(threads))
        for threads, capacity in ((1, 1500), (2, 1500), (3, 1501), (5, 4000), (20, 1500))
    ]
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert len(np.unique(found[0])) > len(found[0]) // 2


@settings(max_examples=40, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    sharing=st.integers(1, 4),
    columns=st.integers(1, 140),
    length=st.integers(1, 200),
    seen=st.integers(1, 200),
    dtype=st.sampled_from(KV_DTYPES),
    seed=st.integers(0, 1000),
)
def test_native_agrees_with_its_twin(
    kv_heads: int, sharing: int, columns: int, length: int, seen: int, dtype: str, seed: int
) -> None:
    shape = (kv_heads * sharing, kv_heads, columns, length, max(length - seen, 0), length + 3)
    twin = numpy_core.Kernels()
    case = Case(twin, dtype, shape, seed)
    expected = case.attend(twin)
    for isa in _core.available_isas():
        kernels = _core.Kernels(2, isa)
        assert np.array_equal(Case(kernels, dtype, shape, seed).rows, case.rows)
        tolerance = 1e-3 if dtype == "int8" else 1e-5
        np.testing.assert_allclose(case.attend(kernels), expected, atol=tolerance, rtol=0)
        kernels.close()


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_large_scores_neither_overflow_nor_vanish(make_kernels: Make, dtype: str) -> None:
    """One position far above the others: the answer is its value."""
    kernels = make_kernels()
    case = Case(kernels, dtype, (1, 1, 32, 80, 0, 80))
    keys = np.zeros((80, 32), np.float32)
    keys[37], keys[38:] = 100.0, -100.0
    kernels.write_head_rows(keys.ravel(), dtype, 32, 1, 0, case.rows[0])
    case.query[:] = 100.0
    found, expected = case.attend(kernels), case.decoded()[1, 0, 37].float().numpy()
    # In int8 what a weight comes to beside scales is rounded, and so is the product.
    tolerance = 2**-22 if dtype == "int8" else 0
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_rows_are_written_where_they_belong_and_nowhere_else(
    make_kernels: Make, dtype: str
) -> None:
    kernels = make_kernels(3)
    case = Case(kernels, dtype, (3, 3, 40, 20, 0, 32))
    before = case.rows[0].reshape(3, 32, -1).copy()
    more = np.random.default_rng(5).standard_normal((3, 4, 40)).astype(np.float32)
    kernels.write_head_rows(more.ravel(), dtype, 40, 3, 20, case.rows[0])
    after = case.rows[0].reshape(3, 32, -1)
    assert np.array_equal(after[:, :20], before[:, :20])
    assert np.array_equal(after[:, 24:], before[:, 24:])
    alone = np.empty(after[:, 20:24].size, np.uint8)
    kernels.encode_rows(more.ravel(), 40, dtype, alone)
    assert np.array_equal(after[:, 20:24].ravel(), alone)


@pytest.mark.parametrize(
    ("dtype", "value", "error"),
    [
        ("f16", 70000.0, OverflowError),
        ("f16", -65520.0, OverflowError),
        ("int8", 1e9, OverflowError),
        *((dtype, bad, ValueError) for dtype in KV_DTYPES for bad in (np.nan, np.inf, -np.inf)),
    ],
)
def test_what_has_no_place_is_refused(
    make_kernels: Make, dtype: str, value: float, error: type[Exception]
) -> None:
    values = np.ones((2, 3, 40), np.float32)
    values[1, 2, 39] = value
    cache = np.zeros(2 * 8 * _core.row_bytes(dtype, 40), np.uint8)
    with pytest.raises(error):
        make_kernels(2).write_head_rows(values.ravel(), dtype, 40, 2, 0, cache)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_the_largest_that_f16_can_hold_is_no_infinity(make_kernels: Make, dtype: str) -> None:
    kernels = make_kernels()
    case = Case(kernels, dtype, (1, 1, 4, 1, 0, 1))
    values = np.full(4, np.nextafter(np.float32(65520), np.float32(0)), np.float32)
    kernels.write_head_rows(values, dtype, 4, 1, 0, case.rows[1])
    np.testing.assert_allclose(case.attend(kernels), values, rtol=2e-3)


WRONG = {
    "end beyond the rows": ({"end": 33}, IndexError),
    "nothing seen": ({"first": 20}, IndexError),
    "first negative": ({"first": -1}, IndexError),
    "no heads": ({"kv_heads": 0}, ValueError),
    "heads that divide nothing": ({"kv_heads": 5}, ValueError),
    "no columns": ({"columns": 0}, ValueError),
    "columns that divide nothing": ({"columns": 39}, ValueError),
    "values shorter": ({"values": np.zeros(3 * 160, np.uint8)}, ValueError),
    "out shorter": ({"out": np.zeros(40, np.float32)}, ValueError),
    "dtype unknown": ({"dtype": "f64"}, ValueError),
    "a query of another type": ({"query": np.zeros(120, np.float64)}, TypeError),
    "sinks of fewer heads": ({"sinks": np.zeros(2, np.float32)}, ValueError),
    "sinks of another type": ({"sinks": np.zeros(3, np.float64)}, TypeError),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_sizes_raise(make_kernels: Make, wrong: str) -> None:
    changes, error = WRONG[wrong]
    kernels = make_kernels(2)
    case = Case(kernels, "f32", (3, 3, 40, 20, 0, 32))
    assert np.isfinite(case.attend(kernels)).all()
    with pytest.raises(error):
        case.attend(kernels, **changes)


@pytest.mark.parametrize("position", [-1, 31, 1 << 62])
def test_rows_beyond_the_cache_raise(core: ModuleType, position: int) -> None:
    cache, two = np.zeros(32 * 160, np.uint8), np.zeros(2 * 40, np.float32)
    core.Kernels().write_head_rows(two, "f32", 40, 1, 30, cache)
    with pytest.raises(IndexError):
        core.Kernels().write_head_rows(two, "f32", 40, 1, position, cache)


def test_closed_kernels_attend_no_more(make_kernels: Make) -> None:
    kernels = make_kernels()
    case = Case(kernels, "f32", (1, 1, 4, 2, 0, 2))
    kernels.close()
    with pytest.raises(ValueError, match="closed"):
        case.attend(kernels)
    with pytest.raises(ValueError, match="closed"):
        kernels.write_head_rows(np.zeros(4, np.float32), "f32", 4, 1, 0, case.rows[0])
