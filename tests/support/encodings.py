"""What encoded rows mean, in 64 bits: written for tests, apart from both cores."""

from __future__ import annotations

import itertools
import math

import numpy as np

GROUP = 32
ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
GROUP_BYTES = {"int8": 32, "int4": 16, "mxfp4": 16}
SCALE_BYTES = {"int8": 2, "int4": 2, "mxfp4": 1}
MOST = {"int8": 127, "int4": 7}
MXFP4_FLOATS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nbytes_of(dtype: str, width: int) -> int:
    """Bytes of a row."""
    if dtype in ITEM_BYTES:
        return ITEM_BYTES[dtype] * width
    return math.ceil(width / GROUP) * (GROUP_BYTES[dtype] + SCALE_BYTES[dtype])


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes of rows [n, width]: rounded towards zero for bf16, simple scales for whole numbers."""
    if dtype == "f32":
        return values.astype("<f4").reshape(-1).view(np.uint8)
    if dtype == "f16":
        return values.astype("<f2").reshape(-1).view(np.uint8)
    if dtype == "bf16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").reshape(-1).view(np.uint8)
    groups = grouped(np.asarray(values, np.float64))
    if dtype == "mxfp4":
        return encode_mxfp4(groups)
    scales = (np.abs(groups).max(axis=2) / MOST[dtype]).astype("<f2")
    divisors = np.where(scales == 0, 1, scales).astype(np.float64)[:, :, None]
    numbers = np.clip(np.rint(groups / divisors), -MOST[dtype], MOST[dtype]).astype(np.int8)
    if dtype == "int4":
        stored = (numbers + 8).astype(np.uint8)
        numbers = stored[:, :, :16] | (stored[:, :, 16:] << 4)
    packed = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(values), -1)
    return np.concatenate([packed, scales.view(np.uint8)], axis=1).reshape(-1)


def encode_mxfp4(groups: np.ndarray) -> np.ndarray:
    """Bytes of groups [n, groups, 32] as the format asks: the nearest, halfway to an even code.

    A byte of a scale is the exponent of the largest value, less 2, plus 127, from 0 on.
    """
    largest = np.abs(groups).max(axis=2)
    exponents = np.frexp(np.where(largest == 0, 2.0**-200, largest))[1] - 1
    scales = np.maximum(exponents - 2 + 127, 0)
    magnitudes = np.abs(groups) / 2.0 ** (scales[:, :, None] - 127)
    away = np.abs(magnitudes[..., None] - MXFP4_FLOATS[:8])
    nearest = away == away.min(axis=3, keepdims=True)
    codes = np.argmax(nearest * np.array([2, 1] * 4), axis=3)
    codes += np.where((groups < 0) & (codes > 0), 8, 0)
    stored = codes[:, :, :16] | (codes[:, :, 16:] << 4)
    packed = stored.astype(np.uint8).reshape(len(groups), -1)
    return np.concatenate([packed, scales.astype(np.uint8)], axis=1).reshape(-1)


def decode(raw: np.ndarray, dtype: str, width: int) -> np.ndarray:
    """64-bit values [n, width] of encoded bytes."""
    if dtype == "f32":
        return raw.view("<f4").astype(np.float64).reshape(-1, width)
    if dtype == "f16":
        return raw.view("<f2").astype(np.float64).reshape(-1, width)
    if dtype == "bf16":
        wide = (raw.view("<u2").astype("<u4") << 16).view("<f4")
        return wide.astype(np.float64).reshape(-1, width)
    numbers, scales = split(raw, dtype, width)
    return (numbers * scales[:, :, None]).reshape(len(numbers), -1)[:, :width]


def split(raw: np.ndarray, dtype: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers [n, groups, 32] and scales [n, groups] of the bytes of rows."""
    rows = raw.reshape(-1, nbytes_of(dtype, width))
    groups = math.ceil(width / GROUP)
    numbers_end = groups * GROUP_BYTES[dtype]
    packed = rows[:, :numbers_end].reshape(len(rows), groups, -1)
    if dtype == "mxfp4":
        codes = np.concatenate([packed % 16, packed // 16], axis=2)
        return MXFP4_FLOATS[codes], 2.0 ** (rows[:, numbers_end:].astype(np.float64) - 127)
    scales = np.ascontiguousarray(rows[:, numbers_end:]).view("<f2").astype(np.float64)
    if dtype == "int8":
        numbers = packed.astype(np.int64)
        numbers[numbers > 127] -= 256
    else:
        numbers = np.concatenate([packed % 16, packed // 16], axis=2).astype(np.int64) - 8
    return numbers, scales


def rounded_input(x: np.ndarray, dtype: str) -> np.ndarray:
    """The vector that dots of an encoding multiply with: 14 bits by groups for whole numbers."""
    if dtype in ITEM_BYTES:
        return x.astype(np.float64)
    return rounded(grouped(x[None].astype(np.float32))[0]).reshape(-1)[: len(x)]


def weighted_sum(
    raw: np.ndarray, dtype: str, width: int, weights: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """The sum of rows times their weights, in blocks that end at `ends`.

    In whole numbers, weights times scales are rounded to 14 bits: together for each eight rows of
    a block, leaving out those of weight 0.
    """
    if dtype in ITEM_BYTES:
        return weights.astype(np.float64) @ decode(raw, dtype, width)
    numbers, scales = split(raw, dtype, width)
    total = np.zeros(numbers.shape[1:])
    for first, last in itertools.pairwise([0, *ends.tolist()]):
        used = first + np.flatnonzero(weights[first:last])
        for at in range(0, len(used), 8):
            rows = used[at : at + 8]
            scaled = weights[rows, None] * scales[rows].astype(np.float32)
            total += (numbers[rows] * rounded(scaled.T).T[:, :, None]).sum(axis=0)
    return total.reshape(-1)[:width]


def rounded(values: np.ndarray) -> np.ndarray:
    """Floats [n, k] as whole numbers of 14 bits times a scale for each of n."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    scales = largest / np.float32(8127)
    safe = np.where(largest == 0, np.float32(1), largest)
    return np.rint(values * (np.float32(8127) / safe)).astype(np.float64) * scales


def grouped(values: np.ndarray) -> np.ndarray:
    """[n, width] to [n, groups, 32], filled up with zeros."""
    count, width = values.shape
    padded = np.zeros((count, math.ceil(width / GROUP) * GROUP), values.dtype)
    padded[:, :width] = values
    return padded.reshape(count, -1, GROUP)
