"""From one encoding of weights to another; f32, f16 and bf16 in numpy, rounding to nearest even.

Values that are not finite, before or after, are refused: a model that holds one is damaged, and a
value that does not fit a narrower type would become infinite.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import GROUP_BYTES, SCALE_BYTES, row_bytes, row_scale_bytes
from flashllm.errors import TensorMismatch
from flashllm.flash.raw_tensor import all_finite

from .blocks import decode, is_block_type, repack

Place = Callable[[int], str]
"""From the index of an encoded value to a text that says where it is."""
_SMALLEST_SCALE_BITS = 1
"""Of an f16: 2**-24."""
_LEAST_OF_LARGEST = {"int8": 127.5 * 2.0**-24, "int4": 15 * 2.0**-24}
"""What the largest weight of a tensor must exceed, about, to get a larger scale.

Scales of mxfp4 go down to 2**-127, below which f32 has subnormal numbers only.
"""
_ONE_AT_A_TIME = threading.Lock()
"""The kernels have threads of their own and allow one caller at a time."""


def encode(
    raw: NDArray[np.uint8],
    source: str,
    target: str,
    name: str,
    columns: int = 0,
    place: Place | None = None,
) -> NDArray[np.uint8]:
    """The same values in another encoding, as bytes; `TensorMismatch` naming the tensor.

    Groups lie along rows of `columns` values, whole ones. `place` says where the first value lies
    that is no number. Weights in blocks (`blocks`) are repacked where groups of ours can hold them
    as they are, else decoded and encoded again.
    """
    if is_block_type(source):
        repacked = repack(raw, source, target, columns)
        if repacked is not None and all_finite(repacked, target, columns):
            return repacked
        raw, source = decode(raw, source).view(np.uint8), "f32"
    if not all_finite(raw, source):
        bad = int(np.argmin(np.isfinite(widen(raw, source))))
        where = "" if place is None else place(bad)
        raise TensorMismatch(
            f"tensor {name}: holds NaN or infinity{where}; the checkpoint is damaged"
        )
    if source == target:
        return raw
    values = widen(raw, source)
    if target in GROUP_BYTES:
        return _in_groups(values, columns, target, name)
    encoded = narrow(values, target)
    if not all_finite(encoded, target):
        raise _too_large(name, target)
    return encoded


def _in_groups(
    values: NDArray[np.float32], columns: int, target: str, name: str
) -> NDArray[np.uint8]:
    encoded = np.empty(len(values) // columns * row_bytes(target, columns), np.uint8)
    try:
        with _ONE_AT_A_TIME:
            _kernels().encode_rows(values, columns, target, encoded)
    except ValueError as problem:  # of finite numbers it refuses those that no scale reaches
        raise _too_large(name, target) from problem
    return encoded


def largest_scale(rows: NDArray[np.uint8], columns: int, dtype: str) -> int:
    """The bits of the largest scale, its sign left out, of rows [n, bytes] of groups."""
    scales = np.ascontiguousarray(rows[:, rows.shape[1] - row_scale_bytes(dtype, columns) :])
    if SCALE_BYTES[dtype] == 1:
        return int(scales.max(initial=0))
    return int((scales.view(np.uint16) & 0x7FFF).max(initial=0))


def check_scales(largest: int, target: str, name: str) -> None:
    """`TensorMismatch` for a tensor whose weights are all too small for the scales of an encoding.

    `largest` is that of all its rows. Where it is the smallest scale there is, the largest weights
    take few of the numbers and the others become zero: not rounded, but lost. (In a tensor of usual
    weights a group may have it: what is lost there is less than the rounding of its other groups.)
    """
    if target in _LEAST_OF_LARGEST and largest == _SMALLEST_SCALE_BITS:
        raise TensorMismatch(
            f"tensor {name}: all its weights are too small for {target}, under about"
            f" {_LEAST_OF_LARGEST[target]:.0e}, and would become zero or nearly so; convert with"
            " --dtype bf16 or f32"
        )


def _too_large(name: str, target: str) -> TensorMismatch:
    return TensorMismatch(
        f"tensor {name}: holds values too large for {target}; convert with --dtype f32 or bf16"
    )


@functools.cache
def _kernels() -> core.Kernels:
    """One for the process, whose threads begin where something is encoded in groups."""
    return core.open_kernels(os.cpu_count() or 1)


def widen(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Encoded weights as float32, exactly."""
    if dtype == "f32":
        return raw.view(np.float32)
    if dtype == "f16":
        return raw.view(np.float16).astype(np.float32)
    bits: NDArray[np.uint32] = raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)


def narrow(values: NDArray[np.float32], dtype: str) -> NDArray[np.uint8]:
    """float32 encoded; what is too large becomes infinity."""
    if dtype == "f32":
        return values.view(np.uint8)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint8)
    bits = values.view(np.uint32)
    # Half of the last kept bit, less one where that bit is even: ties go to even.
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded: NDArray[np.uint16] = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    return rounded.view(np.uint8)
