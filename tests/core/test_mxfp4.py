"""mxfp4 against the format's definition, and against the decoder of the package that owns GGUF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest

from tests.support import encodings

Make = Callable[..., Any]
SCALES = np.arange(256, dtype=np.uint8)
FINITE = 253
"""From this scale on, numbers times scales may be beyond f32."""


def rows_of_all_scales(columns: int, seed: int = 0) -> np.ndarray:
    """Rows [256, bytes] of random codes, each with another scale."""
    groups = -(-columns // 32)
    rows = np.random.default_rng(seed).integers(0, 256, (256, 17 * groups), np.uint8)
    rows[:, 16 * groups :] = SCALES[:, None]
    return rows


def decoded(kernels: Any, rows: np.ndarray, columns: int) -> np.ndarray:
    out = np.full((len(rows), columns), np.nan, np.float32)
    ids = np.arange(len(rows), dtype=np.int32)
    raw = rows.reshape(-1)
    kernels.decode_rows(raw, rows.shape[1], 0, "mxfp4", ids, columns, out.reshape(-1))
    return out


def encoded(kernels: Any, values: np.ndarray) -> np.ndarray:
    count, columns = values.shape
    out = np.full(count * encodings.nbytes_of("mxfp4", columns), 0xA5, np.uint8)
    kernels.encode_rows(values.reshape(-1), columns, "mxfp4", out)
    return out.reshape(count, -1)


def test_every_code_and_scale_has_the_bits_that_gguf_gives_it(make_kernels: Make) -> None:
    rows = rows_of_all_scales(96)
    rows[:, :8] = np.arange(0, 256, 32)  # codes that chance might leave out
    rows[:, 8:16] = np.arange(1, 256, 31)[:8]
    codes, scales = rows[:, :48].reshape(256, 3, 16), rows[:, 48:, None]
    blocks = np.concatenate([scales, codes], axis=2).reshape(256, -1)
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4)
    found = decoded(make_kernels(), rows, 96)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert not np.isnan(found).any()
    assert np.isfinite(found[:FINITE]).all()


@pytest.mark.parametrize("exponent", [-149, -131, -127, -126, -124, -60, 0, 60, 126])
@pytest.mark.parametrize("columns", [1, 31, 32, 100])
def test_values_are_rounded_as_the_format_says(
    make_kernels: Make, exponent: int, columns: int
) -> None:
    random = np.random.default_rng(columns)
    # In steps of a 64th many are halfway between two floats.
    coarse = random.integers(-127, 128, (40, columns)) / 64.0
    fine = random.uniform(-1.99, 1.99, (40, columns)) * 2.0 ** random.integers(-9, 1, (40, columns))
    values = (np.concatenate([coarse, fine]) * 2.0**exponent).astype(np.float32)
    expected = encodings.encode(values, "mxfp4").reshape(len(values), -1)
    assert np.array_equal(encoded(make_kernels(), values), expected)


def test_what_was_decoded_is_encoded_as_the_same_values(make_kernels: Make) -> None:
    kernels = make_kernels()
    rows = np.concatenate([rows_of_all_scales(70, seed)[:FINITE] for seed in range(3)])
    sparse = rows.copy()  # groups whose largest number is a small one, or none at all
    sparse[:, : 3 * 16] &= np.repeat(np.array([0x99, 0x33, 0x00], np.uint8), 16)
    values = decoded(kernels, np.concatenate([rows, sparse]), 70)
    again = decoded(kernels, encoded(kernels, values), 70)
    assert np.array_equal(again, values)


def test_zeros_have_code_and_scale_0_and_no_sign(make_kernels: Make) -> None:
    values = np.zeros((2, 64), np.float32)
    values[0, ::3] = -0.0
    values[1, 3], values[1, 4], values[1, 40] = 6.0, -1e-9, 2.0**-149
    raw = encoded(make_kernels(), values)
    assert not raw[0].any()
    assert raw[1, 3] == 7
    assert raw[1, 4] == 0  # what becomes zero
    assert list(raw[1, 32:]) == [127, 0]


def test_all_that_is_finite_is_held(make_kernels: Make) -> None:
    kernels, most = make_kernels(), np.finfo(np.float32).max
    values = np.array([[most, -most, 2.0**127, 0]], np.float32)
    found = decoded(kernels, encoded(kernels, values), 4)
    assert list(found[0]) == [1.5 * 2.0**127, -1.5 * 2.0**127, 2.0**127, 0]


@pytest.mark.parametrize("columns", [1, 15, 17, 33, 100, 513])
def test_codes_behind_the_last_column_do_not_count(make_kernels: Make, columns: int) -> None:
    x = np.random.default_rng(1).standard_normal(columns, dtype=np.float32)
    groups = -(-columns // 32)
    rows = rows_of_all_scales(columns)[110:140]
    clean = rows.copy()
    last = clean[:, 16 * (groups - 1) : 16 * groups]
    used = columns - 32 * (groups - 1)
    first, second = np.arange(16) < used, np.arange(16, 32) < used
    last &= (np.where(first, 0x0F, 0) | np.where(second, 0xF0, 0)).astype(np.uint8)
    kernels, results = make_kernels(), []
    for raw in (rows, clean):
        dots, sums = np.empty(len(raw), np.float32), np.zeros(columns, np.float32)
        where = (raw.reshape(-1), raw.shape[1], 0, "mxfp4", np.arange(len(raw), dtype=np.int32))
        kernels.dot_rows(*where, x, dots)
        ends = np.array([len(raw)], np.int32)
        kernels.weighted_sum_rows(*where, np.ones(len(raw), np.float32), ends, sums)
        results.append((dots, sums))
    assert not np.array_equal(rows, clean)
    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1], results[1][1])
