"""Rows encoded and decoded: bounds on what is lost, edges, and the same bytes from both cores."""

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
from flashllm.dtypes import DTYPES
from tests.support.encodings import GROUP, MOST, decode, grouped, nbytes_of, rounded_input

Make = Callable[..., Any]
WIDTHS = [1, 31, 32, 33, 64, 100, 513, 1000]
WHOLE = ["int8", "int4"]
GROUPED = [*WHOLE, "mxfp4"]


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def encoded(kernels: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    count, width = values.shape
    out = np.full(count * nbytes_of(dtype, width), 0xA5, np.uint8)
    kernels.encode_rows(values.reshape(-1), width, dtype, out)
    return out


def scales_of(raw: np.ndarray, dtype: str, width: int) -> np.ndarray:
    """[rows, groups] of int8 and int4."""
    rows = raw.reshape(-1, nbytes_of(dtype, width))
    groups = -(-width // GROUP)
    return np.ascontiguousarray(rows[:, -2 * groups :]).view("<f2").astype(np.float64)


@pytest.mark.parametrize("width", [1, 31, 32, 33, 4096])
def test_row_bytes(core: ModuleType, dtype: str, width: int) -> None:
    assert core.row_bytes(dtype, width) == nbytes_of(dtype, width)


@pytest.mark.parametrize(("name", "width"), [("int2", 8), ("f16", 0), ("int4", 0), ("int8", -1)])
def test_row_bytes_of_what_is_no_row(core: ModuleType, name: str, width: int) -> None:
    with pytest.raises(ValueError, match=r"dtype|columns"):
        core.row_bytes(name, width)


def test_bytes_decode_to_what_they_mean(make_kernels: Make, dtype: str) -> None:
    for width in WIDTHS:
        raw = encoded(make_kernels(), normal((7, width)), dtype)
        nbytes = nbytes_of(dtype, width)
        spaced = np.full((7, nbytes + 11), 0xFF, np.uint8)
        spaced[:, 5 : 5 + nbytes] = raw.reshape(7, nbytes)
        ids = np.array([6, 0, 2, 2], np.int32)
        out = np.full((4, width), np.nan, np.float32)
        kernels = make_kernels(2)
        kernels.decode_rows(spaced.reshape(-1), nbytes + 11, 5, dtype, ids, width, out.reshape(-1))
        assert np.array_equal(out, decode(raw, dtype, width)[ids])


def test_floats_round_to_the_nearest(make_kernels: Make) -> None:
    values = np.concatenate(
        [
            normal((50_000,))
            * np.float32(2.0) ** np.random.default_rng(1).integers(-30, 16, 50_000),
            np.array([0, -0.0, 65504, 65519, 65520, 2**-25, 3 * 2**-26, 2**-14, 1e-30], np.float32),
        ]
    ).astype(np.float32)[None]
    kernels = make_kernels()
    assert np.array_equal(encoded(kernels, values, "f32"), values.reshape(-1).view(np.uint8))
    with np.errstate(over="ignore"):
        halves = values.astype("<f2").reshape(-1).view(np.uint8)
    assert np.array_equal(encoded(kernels, values, "f16"), halves)
    near = decode(encoded(kernels, values, "bf16"), "bf16", values.shape[1])
    assert np.all(np.abs(near - values) <= np.abs(values) * 2.0**-8)


def test_int8_loses_half_a_scale_at_most(make_kernels: Make) -> None:
    for width in WIDTHS:
        values = normal((9, width))
        raw = encoded(make_kernels(), values, "int8")
        scales = scales_of(raw, "int8", width)
        most = np.abs(grouped(values)).max(axis=2)
        assert np.all(scales <= most / 127 * (1 + 2.0**-10))
        lost = np.abs(grouped(decode(raw, "int8", width) - values)).max(axis=2)
        assert np.all(lost <= scales / 2 * (1 + 1e-6))


def test_int4_is_no_worse_than_the_scale_that_cuts_nothing_off(make_kernels: Make) -> None:
    for width in WIDTHS:
        values = normal((9, width))
        raw = encoded(make_kernels(), values, "int4")
        groups = grouped(values).astype(np.float64)
        plain = (np.abs(groups).max(axis=2) / 7).astype(np.float16).astype(np.float64)[:, :, None]
        rounded = np.clip(np.rint(groups / np.where(plain == 0, 1, plain)), -8, 7) * plain
        lost = grouped(decode(raw, "int4", width) - values)
        assert np.all(
            (lost**2).sum(axis=2) <= ((rounded - groups) ** 2).sum(axis=2) * (1 + 1e-6) + 1e-30
        )
        assert np.all(np.abs(lost) <= np.abs(groups).max(axis=2, keepdims=True) * 0.21)


def test_int4_of_normal_weights_loses_little(make_kernels: Make) -> None:
    values = normal((64, 1024))
    lost = decode(encoded(make_kernels(), values, "int4"), "int4", 1024) - values
    assert np.sqrt((lost**2).mean()) < 0.0830  # max / 7 alone: 0.097


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("value", [1.0, -1.0, 3e-7, -2.5e5, 1e5])
def test_equal_values_stay_equal(make_kernels: Make, dtype: str, value: float) -> None:
    values = np.full((2, 40), value, np.float32)
    found = decode(encoded(make_kernels(), values, dtype), dtype, 40)
    assert np.all(found == found[0, 0])
    step = max(abs(value) * 2.0**-10, 2.0**-24)  # of a half
    assert abs(found[0, 0] - value) <= step * MOST[dtype]


@pytest.mark.parametrize("dtype", WHOLE)
def test_groups_of_zeros_are_zeros(make_kernels: Make, dtype: str) -> None:
    values = np.zeros((2, 96), np.float32)
    values[1, 40] = -1.5
    values[0, 3] = -0.0
    raw = encoded(make_kernels(), values, dtype)
    scales = scales_of(raw, dtype, 96)
    assert np.all((scales != 0) == [[False, False, False], [False, True, False]])
    empty = {"int8": 0, "int4": 0x88}[dtype]
    assert np.all(raw[: nbytes_of(dtype, 96) - 6] == empty)
    assert np.all(decode(raw, dtype, 96)[:, :32] == 0)


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("exponent", [-149, -126, -30, -24, -20, 0, 10, 18])
def test_tiny_and_huge_values_stay_near(make_kernels: Make, dtype: str, exponent: int) -> None:
    values = (normal((4, 64)) * np.float64(2.0) ** exponent).astype(np.float32)
    values = np.clip(values, -400_000, 400_000)
    lost = np.abs(decode(encoded(make_kernels(), values, dtype), dtype, 64) - values)
    most = np.abs(grouped(values)).max(axis=2).repeat(GROUP, axis=1)
    assert np.all(lost <= np.maximum(most / MOST[dtype] * 1.5, 2.0**-24))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_no_number_is_refused(
    make_kernels: Make, dtype: str, wrong: float, threads: int
) -> None:
    values = normal((4000, 70))
    values[[2345, 3999], 69] = wrong
    with pytest.raises(ValueError, match=f"row 2345 has a value that {dtype} cannot hold"):
        encoded(make_kernels(threads), values, dtype)


@pytest.mark.parametrize(("dtype", "most"), [("int8", 65504 * 127), ("int4", 65504 * 7)])
def test_what_no_scale_reaches_is_refused(make_kernels: Make, dtype: str, most: int) -> None:
    values = np.zeros((1, 5), np.float32)
    values[0, 2] = -most
    found = decode(encoded(make_kernels(), values, dtype), dtype, 5)
    assert abs(found[0, 2] + most) <= most * 2.0**-10
    values[0, 2] = np.nextafter(np.float32(-most), np.float32(-np.inf))
    with pytest.raises(ValueError, match="too large"):
        encoded(make_kernels(), values, dtype)


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 200),
    count=st.integers(1, 9),
    exponent=st.integers(-150, 14),
    spread=st.sampled_from([0, 3, 40]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 10_000),
)
def test_both_cores_and_all_sets_give_the_same_bytes(
    width: int, count: int, exponent: int, spread: int, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    powers = exponent + rng.integers(-spread, min(spread, 14 - exponent) + 1, (count, width))
    values = (rng.standard_normal((count, width)) * 2.0**powers).astype(np.float32)
    values[rng.random((count, width)) < 0.1] = 0
    expected = encoded(numpy_core.Kernels(), values, dtype)
    for isa in _core.available_isas():
        assert np.array_equal(encoded(_core.Kernels(2, isa), values, dtype), expected)


@pytest.mark.parametrize("dtype", GROUPED)
def test_coarse_values_with_ties_give_the_same_bytes(dtype: str) -> None:
    values = np.random.default_rng(1).integers(-15, 16, (300, 96)).astype(np.float32) / 2
    expected = encoded(numpy_core.Kernels(), values, dtype)
    for isa in _core.available_isas():
        assert np.array_equal(encoded(_core.Kernels(1, isa), values, dtype), expected)


@pytest.mark.parametrize("dtype", GROUPED)
def test_only_the_weights_rounding_shows_in_dots(make_kernels: Make, dtype: str) -> None:
    width = 1000
    weights, x = normal((20, width)), normal((width,), seed=1)
    raw = encoded(make_kernels(), weights, dtype)
    out = np.empty(20, np.float32)
    make_kernels().matvec(raw, dtype, x, out)
    exact = decode(raw, dtype, width)
    assert np.all(np.abs(rounded_input(x, dtype) - x) <= np.abs(x).max() / 8127 / 2 * 1.01)
    bound = np.abs(exact).sum(axis=1) * np.abs(x).max() / 8127 / 2
    assert np.all(np.abs(out - exact @ x) <= bound)


@pytest.mark.parametrize("dtype", GROUPED)
def test_dots_with_extreme_numbers_are_exact(make_kernels: Make, dtype: str) -> None:
    # Every stored byte in every place, with inputs that are exact: no instruction may saturate.
    width = 64
    nbytes = nbytes_of(dtype, width)
    ones = np.full(2, 127, np.uint8) if dtype == "mxfp4" else np.full(2, 1.0, "<f2").view(np.uint8)
    rows = np.zeros((256, nbytes), np.uint8)
    rows[:, : -len(ones)] = np.arange(256)[:, None]
    rows[:, -len(ones) :] = ones
    for signs in (np.ones(width), np.where(np.arange(width) % 3 == 0, -1, 1)):
        x = (signs * 8127).astype(np.float32)
        out = np.empty(256, np.float32)
        make_kernels().matvec(rows.reshape(-1), dtype, x, out)
        assert np.array_equal(out, decode(rows.reshape(-1), dtype, width) @ x)


@pytest.mark.parametrize("dtype", GROUPED)
def test_inputs_that_are_no_numbers_show(make_kernels: Make, dtype: str) -> None:
    raw = encoded(make_kernels(), normal((3, 100)), dtype)
    for wrong in (np.nan, np.inf):
        x = normal((100,), seed=1)
        x[77] = wrong
        out = np.zeros(3, np.float32)
        make_kernels().matvec(raw, dtype, x, out)
        assert np.isnan(out).all()


def test_wrong_sizes_are_refused(make_kernels: Make) -> None:
    kernels = make_kernels()
    values, out = np.zeros(64, np.float32), np.zeros(2 * 34, np.uint8)
    kernels.encode_rows(values, 32, "int8", out)
    for wrong in [
        (values[:-1], 32, "int8", out),
        (values, 32, "int8", out[:-1]),
        (values, 32, "int4", out),
        (values, 0, "int8", out),
        (values, -32, "int8", out),
        (values, 32, "int3", out),
    ]:
        with pytest.raises(ValueError):
            kernels.encode_rows(*wrong)
    ids = np.array([0, 1], np.int32)
    kernels.decode_rows(out, 34, 0, "int8", ids, 32, values)
    for other, error in [
        ((out, 34, 0, "int8", ids, 32, values[:-1]), ValueError),
        ((out, 34, 0, "int8", ids, 0, values), ValueError),
        ((out, 34, 1, "int8", ids, 32, values), IndexError),
        ((out, 34, 0, "int8", ids + np.int32(1), 32, values), IndexError),
        ((out, 34, 0, "int8", -ids, 32, values), IndexError),
    ]:
        with pytest.raises(error):
            kernels.decode_rows(*other)
    kernels.close()
    with pytest.raises(ValueError, match="closed"):
        kernels.encode_rows(values, 32, "int8", out)


@pytest.mark.parametrize(("count", "row_bytes"), [(0, 5), (3, 1), (7, 33), (300, 4096)])
def test_rows_are_copied_where_they_belong(make_kernels: Make, count: int, row_bytes: int) -> None:
    rng = np.random.default_rng(count)
    rows = rng.integers(0, 256, ((count + 2), row_bytes), np.uint8)
    to = rng.integers(0, 256, ((count + 5), row_bytes), np.uint8)
    row_ids = rng.integers(0, count + 2, count).astype(np.int32)
    to_ids = rng.permutation(count + 5)[:count].astype(np.int32)
    expected = to.copy()
    expected[to_ids] = rows[row_ids]
    kernels = make_kernels(2)
    kernels.copy_rows(rows.reshape(-1), row_ids, row_bytes, to.reshape(-1), to_ids)
    np.testing.assert_array_equal(to, expected)


def test_rows_outside_are_not_copied(make_kernels: Make) -> None:
    kernels = make_kernels()
    rows, to = np.zeros(64, np.uint8), np.ones(96, np.uint8)
    one, two = np.array([1], np.int32), np.array([2], np.int32)
    kernels.copy_rows(rows, one, 32, to, two)
    for wrong, error in [
        ((rows, two, 32, to, two), IndexError),
        ((rows, one, 32, to, np.array([3], np.int32)), IndexError),
        ((rows, -one, 32, to, two), IndexError),
        ((rows, one, 32, to, -one), IndexError),
        ((rows, one, 0, to, two), ValueError),
        ((rows, one, -32, to, two), ValueError),
        ((rows, np.array([0, 1], np.int32), 32, to, two), ValueError),
    ]:
        with pytest.raises(error):
            kernels.copy_rows(*wrong)
    kernels.close()
    with pytest.raises(ValueError, match="closed"):
        kernels.copy_rows(rows, one, 32, to, two)
