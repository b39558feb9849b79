"""Encodings of rows in numpy: the same bytes and the same whole numbers as the native core.

int8, int4 and mxfp4 hold whole numbers by groups of 32 columns, the last group filled up with
zeros, then a scale for each group; a weight is number * scale. The numbers of int4 are -8 to 7, and
8 more is stored: a group's first half in the low halves of its 16 bytes, its second in the high
ones. In the same places mxfp4 has codes of _MXFP4_NUMBERS, twice the format's floats; its scales
are bytes s that stand for 2 ** (s - 128), half of the format's. Other scales are in f16.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode", "dots", "encode", "quantise", "row_bytes", "weighted_sum"]

Floats = NDArray[np.float32]
Raw = NDArray[np.uint8]

_GROUP = 32
_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
_GROUP_BYTES = {"int8": _GROUP, "int4": _GROUP // 2, "mxfp4": _GROUP // 2}
_SCALE_BYTES = {"int8": 2, "int4": 2, "mxfp4": 1}
_LARGEST_HALF = np.float32(65504)
_MOST = {"int8": np.float32(127), "int4": np.float32(7)}
_FACTORS = (1.0, 0.95, 0.9, 0.85, 0.8, 1.05)  # as in encode_loops.h, and in that order
_MXFP4_NUMBERS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_MOST_ROUNDED = np.float32(8127)  # 128 * 63 + 63
_LEAST_ROUNDED = np.float32(2.0**-100)
_ROWS_PER_SUM = 8


def row_bytes(dtype: str, columns: int) -> int:
    """Bytes of one row of an encoding: f32, f16, bf16, int8, int4 or mxfp4."""
    if dtype not in _ITEM_BYTES and dtype not in _GROUP_BYTES:
        raise ValueError(f"dtype is {dtype!r}; expected f32, f16, bf16, int8, int4 or mxfp4")
    if columns < 1:
        raise ValueError("a row has no columns")
    if dtype in _ITEM_BYTES:
        return _ITEM_BYTES[dtype] * columns
    return -(-columns // _GROUP) * (_GROUP_BYTES[dtype] + _SCALE_BYTES[dtype])


def decode(raw: Raw, dtype: str, columns: int) -> Floats:
    """The values of encoded rows, [rows, row_bytes] to [rows, columns]."""
    if dtype == "f32":
        return raw.view(np.float32)
    if dtype == "f16":
        return raw.view(np.float16).astype(np.float32)
    if dtype == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    numbers, scales = _split(raw, dtype)
    values = numbers.astype(np.float32) * scales[:, :, None]
    return values.reshape(len(raw), -1)[:, :columns]


def encode(values: Floats, dtype: str, first_row: int = 0) -> Raw:
    """The bytes of rows, [rows, columns] to [rows, row_bytes]: ValueError for what cannot be."""
    _refuse(values, dtype, first_row)
    if dtype == "f32":
        return values.view(np.uint8)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint8)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)
    flat = _grouped(values).reshape(-1, _GROUP)
    if dtype == "mxfp4":
        scale_codes = _mxfp4_scales(flat)
        return _joined(len(values), _paired(_mxfp4_codes(flat, scale_codes)), scale_codes)
    scales = (_scales_int8 if dtype == "int8" else _scales_int4)(flat)
    most = float(_MOST[dtype])
    numbers = _round(flat, scales, -most if dtype == "int8" else -8.0, most)
    zero = ~flat.any(axis=1)
    scales[zero], numbers[zero] = 0, 0
    if dtype == "int8":
        packed: Raw = numbers.astype(np.int8).view(np.uint8)
    else:
        packed = _paired((numbers + 8).astype(np.uint8))
    return _joined(len(values), packed, scales.astype(np.float16).view(np.uint8))


def quantise(x: Floats, fast: bool = False) -> tuple[NDArray[np.int32], Floats]:
    """A vector as whole numbers of 14 bits [groups, 32] and a scale for each group.

    `fast` leaves 7 bits of them: multiples of 128.
    """
    numbers, scales = _round_together(_grouped(x[None])[0])
    return (numbers - (((numbers + 64) & 127) - 64) if fast else numbers), scales


def weighted_sum(raw: Raw, dtype: str, columns: int, weights: Floats) -> Floats:
    """Rows [n, row_bytes] of a block times weights [n], in their order, [columns].

    Groups take weights times scales rounded, together those of _ROWS_PER_SUM rows.
    """
    total = np.zeros(columns, np.float32)
    if dtype in _ITEM_BYTES:
        for row, weight in zip(decode(raw, dtype, columns), weights, strict=True):
            total += weight * row
        return total
    for first in range(0, len(raw), _ROWS_PER_SUM):
        numbers, scales = _split(raw[first : first + _ROWS_PER_SUM], dtype)
        rounded, units = _round_together((weights[first : first + len(numbers), None] * scales).T)
        sums = (numbers.astype(np.int32) * rounded.T[:, :, None]).sum(axis=0, dtype=np.int32)
        total += (sums.astype(np.float32) * units[:, None]).reshape(-1)[:columns]
    return total


def _round_together(groups: Floats) -> tuple[NDArray[np.int32], Floats]:
    """Values [groups, k] as whole numbers of 14 bits and a scale for each group: rounding.h."""
    largest = np.abs(groups).max(axis=1)
    usable = (largest >= _LEAST_ROUNDED) & np.isfinite(largest)
    safe = np.where(usable, largest, np.float32(1))
    scales = np.where(usable, largest / _MOST_ROUNDED, np.where(largest < 1, 0, np.nan))
    inverse = (_MOST_ROUNDED / safe)[:, None]
    numbers = np.rint(np.where(usable[:, None], groups, 0) * inverse)
    return numbers.astype(np.int32), scales.astype(np.float32)


def dots(raw: Raw, dtype: str, x: Floats, fast: bool = False) -> Floats:
    """Dots of rows [rows, row_bytes] with x [columns], which groups take rounded."""
    if dtype in _ITEM_BYTES:
        return np.asarray((decode(raw, dtype, len(x)) * x).sum(axis=1))
    numbers, scales = _split(raw, dtype)
    x_numbers, x_scales = quantise(x, fast)
    sums = (numbers.astype(np.int32) * x_numbers).sum(axis=2, dtype=np.int32)
    return np.asarray((sums.astype(np.float32) * (scales * x_scales)).sum(axis=1))


def _split(raw: Raw, dtype: str) -> tuple[NDArray[np.int8], Floats]:
    """The numbers [rows, groups, 32] and scales [rows, groups] of encoded rows."""
    groups = raw.shape[1] // (_GROUP_BYTES[dtype] + _SCALE_BYTES[dtype])
    packed = raw[:, : groups * _GROUP_BYTES[dtype]].reshape(len(raw), groups, -1)
    ends = np.ascontiguousarray(raw[:, groups * _GROUP_BYTES[dtype] :])
    if dtype == "int8":
        return packed.view(np.int8), ends.view(np.float16).astype(np.float32)
    halves = np.concatenate([packed & 15, packed >> 4], axis=2)
    if dtype == "mxfp4":
        return _MXFP4_NUMBERS[halves], np.ldexp(np.float32(1), ends.astype(np.int32) - 128)
    return halves.view(np.int8) - np.int8(8), ends.view(np.float16).astype(np.float32)


def _paired(codes: Raw) -> Raw:
    """Codes of four bits [groups, 32] in the halves of 16 bytes."""
    return codes[:, : _GROUP // 2] | (codes[:, _GROUP // 2 :] << np.uint8(4))


def _joined(rows: int, packed: Raw, scales: Raw) -> Raw:
    """Bytes of rows from those of all their groups and of all scales."""
    return np.concatenate([packed.reshape(rows, -1), scales.reshape(rows, -1)], axis=1)


def _mxfp4_scales(groups: Floats) -> Raw:
    """Of groups [n, 32]: with them the largest value is 4 up to 8, or less for the smallest."""
    exponents = np.abs(groups).max(axis=1).view(np.uint32) >> np.uint32(23)
    found: Raw = (np.maximum(exponents, 2) - 2).astype(np.uint8)
    return found


def _mxfp4_codes(groups: Floats, scales: Raw) -> Raw:
    """The nearest floats, halfway the one whose last bit is zero; 0 for all that become zero."""
    magnitudes = np.ldexp(np.abs(groups), 128 - scales.astype(np.int32)[:, None])
    numbers = _MXFP4_NUMBERS[:8].astype(np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    below = np.searchsorted(middles, magnitudes, side="left")
    reached = np.searchsorted(middles, magnitudes, side="right")
    codes = np.where(below % 2 == 0, below, reached).astype(np.uint8)
    found: Raw = codes | np.where((groups < 0) & (codes != 0), 8, 0).astype(np.uint8)
    return found


def _grouped(values: Floats) -> Floats:
    """[rows, columns] to [rows, groups, 32], filled up with zeros."""
    rows, columns = values.shape
    groups = -(-columns // _GROUP)
    padded = np.zeros((rows, groups * _GROUP), np.float32)
    padded[:, :columns] = values
    return padded.reshape(rows, groups, _GROUP)


def _refuse(values: Floats, dtype: str, first_row: int) -> None:
    most = _MOST[dtype] * _LARGEST_HALF if dtype in _MOST else np.finfo(np.float32).max
    wrong = ~(np.abs(values) <= most).all(axis=1)
    if wrong.any():
        raise ValueError(
            f"row {first_row + int(wrong.argmax())} has a value that {dtype} cannot hold: "
            "NaN, infinite or too large"
        )


def _round(groups: Floats, scales: Floats, least: float, most: float) -> Floats:
    """The numbers nearest to groups [n, 32] over scales [n]."""
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    numbers: Floats = np.clip(np.rint(groups * inverse[:, None]), least, most)
    return numbers


def _scales_int8(groups: Floats) -> Floats:
    """In the nearest half, or the next one up where a number would pass 127."""
    largest = np.abs(groups).max(axis=1)
    halves = (largest / _MOST["int8"]).astype(np.float16)
    scales = halves.astype(np.float32)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    enough = (scales != 0) & (largest * inverse < np.float32(127.5))
    bits = halves.view(np.uint16) + (~enough).astype(np.uint16)
    found: Floats = bits.view(np.float16).astype(np.float32)
    return found


def _scales_int4(groups: Floats) -> Floats:
    """Of a few, the one that leaves the least squared error."""
    positive, negative = groups.max(axis=1), -groups.min(axis=1)
    largest = np.maximum(positive, negative)
    whole = np.where(positive >= negative, -largest, largest) / np.float32(8)
    best = _nearest_half(largest / _MOST["int4"])
    least = _squared_error(groups, best)
    for factor in _FACTORS:
        scales = _nearest_half(whole * np.float32(factor))
        error = _squared_error(groups, scales)
        best = np.where(error < least, scales, best)
        least = np.minimum(error, least)
    return np.asarray(best)


def _nearest_half(scales: Floats) -> Floats:
    """Never zero and never infinite."""
    magnitudes = np.minimum(np.abs(scales), _LARGEST_HALF).astype(np.float16).astype(np.float32)
    found: Floats = np.copysign(np.maximum(magnitudes, np.float32(2.0**-24)), scales)
    return found


def _squared_error(groups: Floats, scales: Floats) -> NDArray[np.float64]:
    """Eight sums, added in pairs: this order is part of the encoding."""
    numbers = _round(groups, scales, -8, 7)
    rest = (groups - numbers * scales[:, None]).astype(np.float64)
    squares = (rest * rest).reshape(len(groups), 4, 8)
    sums = ((squares[:, 0] + squares[:, 1]) + squares[:, 2]) + squares[:, 3]
    sums = sums[:, :4] + sums[:, 4:]
    sums = sums[:, :2] + sums[:, 2:]
    error: NDArray[np.float64] = sums[:, 0] + sums[:, 1]
    return error
