"""Products of the same rows with many vectors: the bits of each vector alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flashllm import _core
from flashllm.core.numpy_twin.kernels import Kernels as TwinKernels
from tests.support.encodings import decode, encode, nbytes_of

Make = Callable[..., Any]
SHAPES = [
    # Vectors, columns, rows: around the sizes of tiles, panels and blocks of every set.
    (1, 64, 5), (2, 1, 1), (3, 15, 64), (7, 16, 5), (64, 63, 129), (130, 64, 64), (5, 65, 129),
    (64, 4099, 5), (7, 4099, 64), (130, 1000, 1), (13, 2080, 25), (33, 512, 300), (2, 768, 7),
    (300, 2050, 110),  # more than a core's cache has room for, over several panels at once
]  # fmt: skip


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.fixture(params=_core.available_isas())
def make_native(request: pytest.FixtureRequest) -> Make:
    """Kernels of each instruction set; numpy's take a vector after the other by themselves."""
    return lambda threads=1, fast=False: _core.Kernels(threads, request.param, fast)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_times_vectors_has_the_bits_of_each_alone(
    make_native: Make, dtype: str, shape: tuple[int, int, int]
) -> None:
    vectors, columns, count = shape
    rows = encode(normal((count, columns)), dtype)
    x = normal((vectors, columns), seed=1)
    one, alone = make_native(), np.empty((vectors, count), np.float32)
    for vector, products in zip(x, alone, strict=True):
        one.matvec(rows, dtype, vector, products)
    for threads in (1, 3):
        out = np.full((vectors, count), np.nan, np.float32)
        make_native(threads).matmul(rows, dtype, x, out)
        assert np.array_equal(out, alone)


@pytest.mark.skipif("avxvnni" not in _core.available_isas(), reason="no VNNI in 256 bits")
@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_vnni_in_256_bits_has_the_bits_of_avx2(
    dtype: str, fast: bool, shape: tuple[int, int, int]
) -> None:
    """Sums of a group are exact, and groups add up in the same order."""
    vectors, columns, count = shape
    rows = encode(normal((count, columns)), dtype)
    x, weights = normal((vectors, columns), seed=1), normal((vectors, count), seed=2)
    ends, ids = np.array([count], np.int32), np.arange(count, dtype=np.int32)
    where = (rows, nbytes_of(dtype, columns), 0, dtype, ids)
    found = []
    for isa in ("avx2", "avxvnni"):
        kernels = _core.Kernels(2, isa, fast)
        products = np.empty((vectors, count), np.float32)
        sums = np.zeros((vectors, columns), np.float32)
        kernels.matmul(rows, dtype, x, products)
        kernels.weighted_sum_rows_all(*where, weights, ends, sums)
        alone = np.zeros(columns, np.float32)
        kernels.weighted_sum_rows(*where, weights[0], ends, alone)
        kernels.close()
        found.append((products, sums, alone))
    for avx2, vnni in zip(*found, strict=True):
        assert np.array_equal(avx2, vnni)
        assert np.isfinite(avx2).all()


@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("columns", [1, 32, 96, 500, 513, 1000, 4100])
def test_a_matrix_in_tiles_has_the_same_bytes_and_gives_the_same_bits(
    make_native: Make, dtype: str, fast: bool, columns: int
) -> None:
    count, vectors = 64 if columns > 1000 else 256, 25
    rows = encode(normal((count, columns)), dtype)
    x = normal((vectors, columns), seed=1)
    x[3, 0] = np.inf
    kernels, tiles = make_native(3, fast), rows.copy()
    expected = np.empty((vectors, count), np.float32)
    kernels.matmul(rows, dtype, x, expected)
    is_tiled = kernels.tile_matrix(tiles, dtype, columns)
    tile_rows = kernels.tile_rows(dtype)
    assert is_tiled == (tile_rows > 0)
    assert tile_rows == 0 or count % tile_rows == 0
    assert np.array_equal(np.sort(tiles), np.sort(rows))
    assert np.array_equal(tiles, rows) == (not is_tiled)
    for some in (slice(0, 1), slice(3, 4), slice(0, 2), slice(0, 25)):
        found = np.full((some.stop - some.start, count), np.nan, np.float32)
        kernels.matmul(tiles, dtype, x[some], found, is_tiled)
        assert np.array_equal(found, expected[some], equal_nan=True)


@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("columns", [1, 32, 96, 500, 513, 1000, 4100])
def test_rows_of_tiles_have_their_values(make_native: Make, dtype: str, columns: int) -> None:
    rows = encode(normal((96, columns)), dtype)
    kernels, tiles, nbytes = make_native(3), rows.copy(), len(rows) // 96
    ids = np.array([95, 0, 33, 33, *range(96)], np.int32)
    expected = np.empty(len(ids) * columns, np.float32)
    kernels.decode_rows(rows, nbytes, 0, dtype, ids, columns, expected)
    found = np.full_like(expected, np.nan)
    if not kernels.tile_matrix(tiles, dtype, columns):
        with pytest.raises(ValueError, match="no tiles of"):
            kernels.decode_tiles(tiles, dtype, ids, columns, found)
        return
    kernels.decode_tiles(tiles, dtype, ids, columns, found)
    assert np.array_equal(found, expected)
    for number in (-1, 96):
        with pytest.raises(IndexError):
            kernels.decode_tiles(
                tiles, dtype, np.array([number], np.int32), columns, found[:columns]
            )
    with pytest.raises(ValueError, match="no tiles of"):
        kernels.decode_tiles(tiles[nbytes:], dtype, ids[:1], columns, found[:columns])


@pytest.mark.parametrize("dtype", ["f32", "int4"])
def test_numpy_decodes_no_tiles(dtype: str) -> None:
    rows, out = encode(normal((32, 8)), dtype), np.empty(8, np.float32)
    with pytest.raises(ValueError, match="no tiles of numpy"):
        TwinKernels().decode_tiles(rows, dtype, np.zeros(1, np.int32), 8, out)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_there_are_no_tiles_of_floats(make_kernels: Make, dtype: str) -> None:
    rows = encode(normal((32, 8)), dtype)
    assert make_kernels().tile_rows(dtype) == 0
    assert not make_kernels().tile_matrix(rows, dtype, 8)
    assert np.array_equal(rows, encode(normal((32, 8)), dtype))


@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
def test_a_part_of_a_tile_stays_as_it_is(make_kernels: Make, dtype: str) -> None:
    rows = encode(normal((33, 64)), dtype)
    assert not make_kernels().tile_matrix(rows, dtype, 64)
    assert np.array_equal(rows, encode(normal((33, 64)), dtype))


@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("shape", [(2, 1, 1), (13, 2080, 25), (25, 1056, 33), (5, 65, 129)])
def test_fast_products_are_those_of_vectors_in_seven_bits(
    make_native: Make, dtype: str, shape: tuple[int, int, int]
) -> None:
    vectors, columns, count = shape
    rows = encode(normal((count, columns)), dtype)
    x = normal((vectors, columns), seed=1)
    groups = np.zeros((vectors, -(-columns // 32) * 32), np.float32)
    groups[:, :columns] = x
    groups = groups.reshape(vectors, -1, 32)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    numbers = np.rint(groups * (np.float32(8127) / largest))
    rounded = 128 * np.floor((numbers + 64) / 128) * (largest.astype(np.float64) / 8127)
    rounded = rounded.reshape(vectors, -1)[:, :columns]
    weights = decode(rows, dtype, columns).astype(np.float64)
    found, alone = (np.empty((vectors, count), np.float32) for _ in range(2))
    fast = make_native(3, fast=True)
    fast.matmul(rows, dtype, x, found)
    for vector, products in zip(x, alone, strict=True):
        fast.matvec(rows, dtype, vector, products)
    assert fast.fast
    assert np.array_equal(found, alone)
    scale = np.abs(x) @ np.abs(weights.T)
    assert (np.abs(found - rounded @ weights.T) <= 1e-5 * scale).all()
    assert columns == 1 or np.abs(found - x @ weights.T).max() > 1e-3
    twin = np.empty((vectors, count), np.float32)
    TwinKernels(fast=True).matmul(rows, dtype, x, twin)
    assert np.allclose(found, twin, rtol=1e-5, atol=1e-5 * scale.max())


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_many_vectors_have_the_bits_of_each_alone(
    make_native: Make, dtype: str, shape: tuple[int, int, int]
) -> None:
    vectors, columns, count = shape
    nbytes = nbytes_of(dtype, columns)
    raw = encode(normal((count, columns)), dtype).reshape(count, nbytes)
    # Rows within bundles, from a byte on where nothing is aligned.
    bundles = np.zeros((count, nbytes + 11), np.uint8)
    bundles[:, 7 : 7 + nbytes] = raw
    where = (bundles.reshape(-1), nbytes + 11, 7, dtype)
    random = np.random.default_rng(2)
    ids = random.permutation(count).astype(np.int32)
    # Blocks of a size as models have, an empty one, and one that is longer than they have.
    ends = np.minimum([20, 84, 84, max(count, 84)], count).astype(np.int32)
    before = normal((vectors, columns), seed=4)
    x = normal((vectors, columns), seed=5)
    one = make_native()
    alone = np.empty((vectors, count), np.float32)
    for vector, products in zip(x, alone, strict=True):
        one.dot_rows(*where, ids, vector, products)
    for zeros in (0.0, 0.1, 0.9):
        weights = normal((vectors, count), seed=3)
        weights[random.random(weights.shape) < zeros] = 0
        totals = before.copy()
        for each, total in zip(weights, totals, strict=True):
            one.weighted_sum_rows(*where, ids, each, ends, total)
        for threads in (1, 3):
            kernels, sums = make_native(threads), before.copy()
            dots = np.full((vectors, count), np.nan, np.float32)
            kernels.dot_rows_all(*where, ids, x, dots)
            kernels.weighted_sum_rows_all(*where, ids, weights, ends, sums)
            assert np.array_equal(dots, alone)
            assert np.array_equal(sums, totals)


def test_the_twin_agrees(dtype: str, make_kernels: Make) -> None:
    rows, x = encode(normal((19, 100)), dtype), normal((5, 100), seed=1)
    stride, ids = nbytes_of(dtype, 100), np.array([3, 0, 18], np.int32)
    kernels, plain = make_kernels(), _core.Kernels(1, "scalar")
    results = []
    for each in (kernels, plain):
        out, dots = np.empty((5, 19), np.float32), np.empty((5, 3), np.float32)
        sums = np.ones((5, 100), np.float32)
        each.matmul(rows, dtype, x, out)
        each.dot_rows_all(rows, stride, 0, dtype, ids, x, dots)
        each.weighted_sum_rows_all(
            rows, stride, 0, dtype, ids, dots, np.array([2, 3], np.int32), sums
        )
        assert np.array_equal(dots, out[:, ids])
        results.append((out, sums))
    for got, expected in zip(*results, strict=True):
        assert np.allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_rows_and_weights_that_are_not_finite_stay_with_their_vectors(
    make_native: Make, dtype: str
) -> None:
    rows, x = encode(normal((64, 100)), dtype), normal((40, 100), seed=1)
    x[11, 70] = np.inf
    weights = normal((40, 64), seed=2)
    weights[3] = np.nan
    weights[:, 9] = 0
    rows.reshape(64, -1)[9, -2:] = 0xFF  # not a number, in every encoding
    ids, ends = np.arange(64, dtype=np.int32), np.array([64], np.int32)
    kernels = make_native(2)
    out, sums = np.empty((40, 64), np.float32), np.zeros((40, 100), np.float32)
    kernels.matmul(rows, dtype, x, out)
    stride = nbytes_of(dtype, 100)
    kernels.weighted_sum_rows_all(rows, stride, 0, dtype, ids, weights, ends, sums)
    assert not np.isfinite(out[11]).any()
    assert not np.isfinite(out[:, 9]).any()
    assert np.isfinite(np.delete(np.delete(out, 11, axis=0), 9, axis=1)).all()
    assert not np.isfinite(sums[3]).any()
    assert np.isfinite(np.delete(sums, 3, axis=0)).all()  # the row of weight 0 is skipped


def test_no_vectors_and_no_rows_are_fine(make_kernels: Make, dtype: str) -> None:
    kernels, none = make_kernels(2), np.empty(0, np.uint8)
    kernels.matmul(none, dtype, np.ones((3, 8), np.float32), np.empty((3, 0), np.float32))
    row = encode(normal((1, 8)), dtype)
    nothing = np.empty((0, 8), np.float32)
    kernels.matmul(row, dtype, nothing, np.empty((0, 1), np.float32))
    no_ids, out = np.empty(0, np.int32), np.ones((3, 8), np.float32)
    weights = np.empty((3, 0), np.float32)
    kernels.weighted_sum_rows_all(row, len(row), 0, dtype, no_ids, weights, no_ids, out)
    assert np.all(out == 1)
