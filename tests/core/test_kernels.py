"""Every instruction set against 64-bit arithmetic, for every encoding, also at odd widths."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm import _core
from flashllm.core.numpy_twin import kernels as numpy_core
from flashllm.dtypes import DTYPES
from tests.support.encodings import decode, encode, nbytes_of, rounded_input, weighted_sum

Make = Callable[..., Any]
WIDTHS = [1, 7, 8, 16, 33, 64, 257, 1000]


def normal(shape: int | tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assert_close(got: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> None:
    """Within 1e-5 of the sum of the magnitudes that were added up."""
    assert np.all(np.abs(got - expected) <= 1e-5 * scale + 1e-30)


def test_matvec(make_kernels: Make, dtype: str) -> None:
    for width in WIDTHS:
        rows = encode(normal((19, width)), dtype)
        x = normal(width, seed=1)
        out = np.full(19, np.nan, np.float32)
        make_kernels().matvec(rows, dtype, x, out)
        exact, x = decode(rows, dtype, width), rounded_input(x, dtype)
        assert_close(out, exact @ x, np.abs(exact) @ np.abs(x))


def test_dot_rows(make_kernels: Make, dtype: str) -> None:
    for width in WIDTHS:
        rows, stride, offset = bundles(11, width, dtype)
        ids = np.array([10, 0, 3, 3, 7], np.int32)
        x = normal(width, seed=1)
        out = np.full(5, np.nan, np.float32)
        make_kernels().dot_rows(rows, stride, offset, dtype, ids, x, out)
        exact, x = rows_at(rows, stride, offset, width, dtype)[ids], rounded_input(x, dtype)
        assert_close(out, exact @ x, np.abs(exact) @ np.abs(x))


def test_weighted_sum_rows(make_kernels: Make, dtype: str) -> None:
    for width in WIDTHS:
        rows, stride, offset = bundles(11, width, dtype)
        ids = np.array([0, 2, 3, 5, 6, 8, 9, 10, 1, 4], np.int32)
        weights = normal(10, seed=2)
        weights[4] = 0.0
        before = normal(width, seed=3)
        out = before.copy()
        ends = np.array([0, 5, 9, 9, 10], np.int32)
        make_kernels().weighted_sum_rows(rows, stride, offset, dtype, ids, weights, ends, out)
        raw = raw_at(rows, stride, offset, width, dtype)[ids]
        scale = np.abs(weights) @ np.abs(decode(raw.reshape(-1), dtype, width)) + np.abs(before)
        assert_close(out, before + weighted_sum(raw, dtype, width, weights, ends), scale)


@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 64])
def test_rounded_weights_cost_little_of_the_largest(
    make_kernels: Make, dtype: str, count: int
) -> None:
    # One row outweighs the others a thousandfold: what those add keeps the digits that it has.
    values, weights = normal((count, 200), seed=8), normal(count, seed=9)
    weights[0] = 1000.0
    raw = encode(values, dtype)
    ids, ends = np.arange(count, dtype=np.int32), np.array([count], np.int32)
    out = np.zeros(200, np.float32)
    make_kernels().weighted_sum_rows(raw, nbytes_of(dtype, 200), 0, dtype, ids, weights, ends, out)
    exact = decode(raw, dtype, 200)
    # Half of the last of 8,127 steps up to the largest, for each of eight rows.
    bound = 8 * 0.5 / 8127 * np.abs(weights[:, None] * exact).max() + 1e-3
    assert np.all(np.abs(out - weights @ exact) <= bound)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["weight", "scale"])
def test_what_is_not_finite_shows_in_its_groups_and_nowhere_else(
    make_kernels: Make, dtype: str, wrong: float, where: str
) -> None:
    width, count = 32 * 41, 13
    raw, weights = encode(normal((count, width)), dtype), normal(count, seed=1)
    scales = raw.reshape(count, -1)[:, -2 * 41 :].copy().view("<f2")
    if where == "weight":
        weights[9] = wrong
    else:
        scales[9, 17] = wrong
        raw.reshape(count, -1)[:, -2 * 41 :] = scales.view(np.uint8)
    ids, ends = np.arange(count, dtype=np.int32), np.array([count], np.int32)
    out = np.zeros(width, np.float32)
    stride = nbytes_of(dtype, width)
    make_kernels(2).weighted_sum_rows(raw, stride, 0, dtype, ids, weights, ends, out)
    finite = np.isfinite(out).reshape(41, 32)
    if where == "weight":
        assert not finite.any()
    else:
        assert not finite[17].any()
        assert finite[np.arange(41) != 17].all()


@pytest.mark.parametrize("width", [7, 64, 1000])
def test_several_vectors_get_the_bits_of_each_alone(
    make_kernels: Make, dtype: str, width: int
) -> None:
    for threads in (1, 2, 7):
        rows, stride, offset = bundles(300, width, dtype)
        ids, vector_ends, block_ends, weights = named_by_vectors(counts=(0, 130, 1, 0, 299, 64, 0))
        x = normal((len(vector_ends), width), seed=1)
        x[3] = np.nan  # of a vector without rows nothing is made
        before = normal(x.shape, seed=3)
        dots, sums = np.full(len(ids), np.nan, np.float32), before.copy()
        kernels = make_kernels(threads)
        where = (rows, stride, offset, dtype)
        kernels.dot_rows_each(*where, ids, vector_ends, x.reshape(-1), dots)
        kernels.weighted_sum_rows_each(
            *where, ids, weights, vector_ends, block_ends, sums.reshape(-1)
        )
        for vector, (first, last) in enumerate(itertools.pairwise([0, *vector_ends.tolist()])):
            alone, total = np.empty(last - first, np.float32), before[vector].copy()
            kernels.dot_rows(*where, ids[first:last], x[vector], alone)
            ends = block_ends[(block_ends > first) & (block_ends <= last)] - np.int32(first)
            kernels.weighted_sum_rows(*where, ids[first:last], weights[first:last], ends, total)
            assert np.array_equal(dots[first:last], alone)
            assert np.array_equal(sums[vector], total)


@pytest.mark.parametrize(("count", "width"), [(1, 7), (40, 64), (300, 1000)])
def test_matrices_apart_get_the_bits_of_each_alone(
    make_kernels: Make, dtype: str, count: int, width: int
) -> None:
    """Matrices of `count` rows that begin anywhere, also in one another."""
    for threads in (1, 2, 7):
        row, nbytes = nbytes_of(dtype, width), count * nbytes_of(dtype, width)
        rows, stride, offset = bundles(4 * count, width, dtype)
        starts = np.arange(4 * count)[:, None] * stride + offset
        matrices = rows[starts + np.arange(row)].reshape(4, nbytes)
        raw = np.pad(matrices, ((0, 0), (0, 5)))
        data = raw.reshape(-1)
        begins = np.array([2, 0, 3, 2], np.int64) * raw.shape[1]
        x = normal((4, width), seed=1)
        kernels = make_kernels(threads)
        for vectors in (x, x[:1]):
            out = np.full((4, count), np.nan, np.float32)
            kernels.matvec_each(data, begins, dtype, vectors, out)
            for number, begin in enumerate(begins.tolist()):
                alone = np.empty(count, np.float32)
                vector = vectors[number % len(vectors)]
                kernels.matvec(data[begin : begin + nbytes].copy(), dtype, vector, alone)
                assert np.array_equal(out[number], alone)
        none = np.empty((0, count), np.float32)
        kernels.matvec_each(data, begins[:0], dtype, x[:1], none)


def named_by_vectors(
    counts: Sequence[int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ids of so many rows for each vector, their ends, those of blocks of them, and weights."""
    random = np.random.default_rng(6)
    each = [np.sort(random.permutation(300)[:count]).astype(np.int32) for count in counts]
    block_ends = [
        start + end
        for start, ids in zip(np.cumsum([0, *counts]), each, strict=False)
        for end in [*(np.flatnonzero(np.diff(ids // 64)) + 1), len(ids)]
    ]
    weights = normal(sum(counts), seed=7)
    weights[::5] = 0.0
    return (
        np.concatenate(each),
        np.cumsum(counts).astype(np.int32),
        np.array(block_ends, np.int32),
        weights,
    )


def bundles(count: int, width: int, dtype: str) -> tuple[np.ndarray, int, int]:
    """Bytes of `count` bundles with something before each row and something after it."""
    offset, nbytes = 12, nbytes_of(dtype, width)
    rows = np.random.default_rng(5).integers(0, 256, (count, nbytes + 20), dtype=np.uint8)
    rows[:, offset : offset + nbytes] = encode(normal((count, width), seed=4), dtype).reshape(
        count, nbytes
    )
    return rows.reshape(-1), nbytes + 20, offset


def rows_at(rows: np.ndarray, stride: int, offset: int, width: int, dtype: str) -> np.ndarray:
    return decode(raw_at(rows, stride, offset, width, dtype).reshape(-1), dtype, width)


def raw_at(rows: np.ndarray, stride: int, offset: int, width: int, dtype: str) -> np.ndarray:
    raw = rows.reshape(-1, stride)[:, offset : offset + nbytes_of(dtype, width)]
    return np.ascontiguousarray(raw)


def test_rows_need_no_alignment(make_kernels: Make, dtype: str) -> None:
    rows, stride, offset = bundles(5, 33, dtype)
    shifted = np.empty(len(rows) + 1, np.uint8)[1:]
    shifted[:] = rows
    ids, x = np.arange(5, dtype=np.int32), normal(33)
    kernels, out, shifted_out = make_kernels(), np.empty(5, np.float32), np.empty(5, np.float32)
    kernels.dot_rows(rows, stride, offset, dtype, ids, x, out)
    kernels.dot_rows(shifted, stride, offset, dtype, ids, x, shifted_out)
    assert np.array_equal(out, shifted_out)


@pytest.mark.parametrize("width", [1, 64, 257, 1000, 4096])
def test_bits_do_not_depend_on_the_number_of_threads(
    make_kernels: Make, dtype: str, width: int
) -> None:
    count = 300
    rows = encode(normal((count, width)), dtype)
    x, weights = normal(width, seed=1), normal(count, seed=2)
    ids = np.random.default_rng(3).permutation(count).astype(np.int32)
    ends = np.array([64, 128, 192, 256, 300], np.int32)
    stride = nbytes_of(dtype, width)
    results = []
    for threads in (1, 2, 3, 7):
        kernels = make_kernels(threads)
        product, dots = np.empty(count, np.float32), np.empty(count, np.float32)
        total = np.zeros(width, np.float32)
        kernels.matvec(rows, dtype, x, product)
        kernels.dot_rows(rows, stride, 0, dtype, ids, x, dots)
        kernels.weighted_sum_rows(rows, stride, 0, dtype, ids, weights, ends, total)
        assert np.array_equal(product[ids], dots)
        results.append((product, dots, total))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert np.array_equal(first, second)


def test_blocks_are_summed_apart_and_then_added_in_order(make_kernels: Make) -> None:
    # (big + -big) within a block vanishes before the small ones are added; in one go, in
    # single precision, the first small one would be lost.
    rows = encode(np.array([[1.0], [1e9], [-1e9], [1.0]]), "f32")
    ids, ends = np.arange(4, dtype=np.int32), np.array([1, 3, 4], np.int32)
    out = np.zeros(1, np.float32)
    make_kernels().weighted_sum_rows(rows, 4, 0, "f32", ids, np.ones(4, np.float32), ends, out)
    assert out[0] == 2.0
    whole = np.zeros(1, np.float32)
    one_block = np.array([4], np.int32)
    make_kernels().weighted_sum_rows(
        rows, 4, 0, "f32", ids, np.ones(4, np.float32), one_block, whole
    )
    assert whole[0] == 1.0


def test_rows_of_weight_zero_are_skipped_whatever_they_hold(make_kernels: Make, dtype: str) -> None:
    values = normal((3, 40))
    rows = encode(values, dtype)
    rows.reshape(3, -1)[1] = 255  # not a number, or past the largest one, in every encoding
    ids, weights = np.arange(3, dtype=np.int32), np.array([1, 0, 1], np.float32)
    out = np.zeros(40, np.float32)
    stride = nbytes_of(dtype, 40)
    make_kernels().weighted_sum_rows(
        rows, stride, 0, dtype, ids, weights, np.array([3], np.int32), out
    )
    assert np.isfinite(out).all()
    assert np.any(out != 0)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_16_bit_value_is_decoded_exactly(make_kernels: Make, dtype: str) -> None:
    codes = np.arange(1 << 16, dtype="<u2")
    with np.errstate(invalid="ignore"):  # signalling NaNs among the codes
        exact = decode(codes.view(np.uint8), dtype, 1)[:, 0]
    finite = np.isfinite(exact)
    out = np.empty(1 << 16, np.float32)
    make_kernels().matvec(codes.view(np.uint8), dtype, np.ones(1, np.float32), out)
    assert np.array_equal(out[finite], exact[finite])
    assert np.array_equal(np.isnan(out), np.isnan(exact))
    assert np.array_equal(np.isinf(out), np.isinf(exact))


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 300),
    count=st.integers(1, 40),
    threads=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_native_agrees_with_its_twin_and_all_sets_with_scalar(
    width: int, count: int, threads: int, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = encode(normal((count, width), seed), dtype)
    ids = rng.integers(0, count, count).astype(np.int32)
    weights, x = normal(count, seed + 1), normal(width, seed + 2)
    ends = np.sort(np.append(rng.integers(0, count, 3), count)).astype(np.int32)
    stride = nbytes_of(dtype, width)
    exact, seen = decode(rows, dtype, width)[ids], rounded_input(x, dtype)
    for kernels in [
        numpy_core.Kernels(),
        *(_core.Kernels(threads, isa) for isa in _core.available_isas()),
    ]:
        dots, total = np.empty(count, np.float32), np.zeros(width, np.float32)
        kernels.dot_rows(rows, stride, 0, dtype, ids, x, dots)
        kernels.weighted_sum_rows(rows, stride, 0, dtype, ids, weights, ends, total)
        assert_close(dots, exact @ seen, np.abs(exact) @ np.abs(seen))
        expected = weighted_sum(rows.reshape(count, -1)[ids], dtype, width, weights, ends)
        assert_close(total, expected, np.abs(weights) @ np.abs(exact))
        kernels.close()


def test_no_rows_is_fine(make_kernels: Make) -> None:
    nothing, ids = np.empty(0, np.uint8), np.empty(0, np.int32)
    x, none, out = normal(8), np.empty(0, np.float32), np.ones(8, np.float32)
    kernels = make_kernels(2)
    kernels.matvec(nothing, "f16", x, none)
    kernels.dot_rows(nothing, 16, 0, "f16", ids, x, none)
    kernels.weighted_sum_rows(nothing, 16, 0, "f16", ids, none, ids, out)
    assert (out == 1).all()
