"""Weights in blocks with scales of their own: repacked into our groups bit for bit, or decoded.

A block of Q8_0 is a scale in f16 and 32 signed bytes, one of Q4_0 a scale and 16 bytes of two
weights each, plus 8, number i in the low and i + 16 in the high half; one of MXFP4 has a scale of a
byte, and codes in the places of these; one of AWQ (`packed_awq`) has a zero point of a byte between
a scale in f16 and its numbers, from which it is taken; one of FP8 (`fp8_blocks`) is a scale in f32
and 32 floats of eight bits, which nothing of ours has; one of MLX (`packed_affine`) is a scale and
an offset, and numbers of four or eight bits in order, which nothing of ours has either. Our rows
have the same numbers in the same order, and the scales behind those of all groups.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import DTYPE_BYTES, GROUP, SCALE_BYTES
from flashllm.flash.raw_tensor import MXFP4_SCALE_MOST

from .gguf_types import BlockType, decoded_by_package, find_type
from .packed_affine import BITS, SCALE_DTYPES
from .tensor import SourceTensor

Raw = NDArray[np.uint8]
_FP8, _AWQ = BlockType("fp8", 32, 36), BlockType("awq", 32, 19)
_MLX = [
    BlockType(f"mlx{bits}_{dtype}", GROUP, 4 + GROUP * bits // 8)
    for bits in BITS
    for dtype in SCALE_DTYPES
]
_OF_SAFETENSORS = {kind.name: kind for kind in (_FP8, _AWQ, *_MLX)}
_SCALE_BYTES = {"q4_0": 2, "q8_0": 2, "mxfp4": 1, "awq": 2}
"""Of the types that are decoded here."""
_TWICE_FLOATS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Of mxfp4's four bits."""


def _values_of_fp8() -> NDArray[np.float32]:
    """Of all bytes: a sign, four bits of exponent, three of mantissa; no infinity, two NaNs."""
    exponents, mantissas = np.divmod(np.arange(128), 8)
    normal = np.ldexp(8.0 + mantissas, exponents - 10)
    values = np.where(exponents == 0, np.ldexp(mantissas.astype(float), -9), normal)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_FP8_VALUES = _values_of_fp8()


def is_block_type(dtype: str) -> bool:
    """Whether tensors of this type are blocks, and can be decoded."""
    return dtype not in DTYPE_BYTES and _find_kind(dtype) is not None


def is_exact(source: str, target: str, turned: bool = False) -> bool:
    """Whether every value of a tensor in blocks stays as it is in the encoding `target`.

    Blocks that are `turned`, columns becoming rows, have no groups of ours. In fp8 a value is the
    product rounded to bf16, as transformers computes with it.
    """
    if target == "f32" or (target == "bf16" and source in ("mxfp4", "fp8")):
        return True
    return not turned and (source, target) in _REPACKED


def stored_bits(source: str) -> float:
    """Bits that a weight takes in blocks of this type, scales included."""
    kind = _kind(source)
    return 8 * kind.block_bytes / kind.block_weights


def repack(raw: Raw, source: str, target: str, columns: int) -> Raw | None:
    """Rows of `columns` weights with the same values in groups of ours; None where none has them.

    `raw` is whole rows.
    """
    found = _REPACKED.get((source, target))
    if found is None:
        return None
    kind = _kind(source)
    blocks = raw.reshape(-1, columns // kind.block_weights, kind.block_bytes)
    rows, scale_bytes = len(blocks), SCALE_BYTES[target]
    numbers, scales = found(blocks[:, :, scale_bytes:]), blocks[:, :, :scale_bytes]
    return np.concatenate([numbers.reshape(rows, -1), scales.reshape(rows, -1)], axis=1).reshape(-1)


def decode(raw: Raw, source: str) -> NDArray[np.float32]:
    """The values of whole blocks, as the library of the format computes them."""
    kind = _kind(source)
    if source == "fp8":
        return _decode_fp8(raw)
    if kind in _MLX:
        return _decode_affine(raw, kind)
    numbers = _NUMBERS.get(source)
    if numbers is None:
        return decoded_by_package(raw, kind)
    blocks = raw.reshape(-1, kind.block_bytes)
    scale_bytes = _SCALE_BYTES[source]
    raw_scales = np.ascontiguousarray(blocks[:, :scale_bytes])
    if source == "mxfp4":
        # Numbers are twice the floats, so that they are whole.
        scales = np.ldexp(np.float32(1), raw_scales.astype(np.int32) - 128)
        scales[raw_scales > MXFP4_SCALE_MOST] = np.nan
    else:
        scales = raw_scales.view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):  # what is not finite is found afterwards
        values = numbers(blocks[:, scale_bytes:]).view(np.int8).astype(np.float32) * scales
    return values.reshape(-1)


def decoded_columns(
    whole: Raw, tensor: SourceTensor, first: int, count: int
) -> NDArray[np.float32]:
    """Columns `first` to `first + count` of a matrix in blocks: [rows, count]."""
    kind = _kind(tensor.dtype)
    start, stop = first // kind.block_weights, -(-(first + count) // kind.block_weights)
    blocks = whole.reshape(tensor.shape[0], -1, kind.block_bytes)[:, start:stop]
    values = decode(np.ascontiguousarray(blocks).reshape(-1), tensor.dtype)
    inside = first - start * kind.block_weights
    return values.reshape(tensor.shape[0], -1)[:, inside : inside + count]


def _decode_fp8(raw: Raw) -> NDArray[np.float32]:
    blocks = raw.reshape(-1, _FP8.block_bytes)
    scales = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is found afterwards
        values: NDArray[np.float32] = _FP8_VALUES[blocks[:, 4:]] * scales
    return values.reshape(-1)


def _decode_affine(raw: Raw, kind: BlockType) -> NDArray[np.float32]:
    blocks = raw.reshape(-1, kind.block_bytes)
    halves = np.ascontiguousarray(blocks[:, :4]).view(np.uint16)
    if kind.name.endswith("_bf16"):
        pairs = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        pairs = halves.view(np.float16).astype(np.float32)
    scales, offsets = pairs[:, :1], pairs[:, 1:]
    numbers = blocks[:, 4:]
    if numbers.shape[1] < GROUP:
        numbers = np.stack([numbers & 15, numbers >> 4], axis=-1).reshape(len(blocks), GROUP)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is found afterwards
        values: NDArray[np.float32] = numbers.astype(np.float32) * scales + offsets
    return values.reshape(-1)


def _kind(name: str) -> BlockType:
    found = _find_kind(name)
    assert found is not None, name
    return found


def _find_kind(name: str) -> BlockType | None:
    return _OF_SAFETENSORS.get(name) or find_type(name)


def _as_they_are(numbers: Raw) -> Raw:
    return numbers


def _bytes_of_halves(numbers: Raw) -> Raw:
    """Signed bytes of numbers in halves of bytes: [..., 16] to [..., 32]."""
    halves = np.concatenate([numbers & 15, numbers >> 4], axis=-1)
    assert halves.shape[-1] == GROUP
    return (halves.view(np.int8) - np.int8(8)).view(np.uint8)


def _bytes_above_zero_points(numbers: Raw) -> Raw:
    """Signed bytes of a zero point and numbers: [..., 17] to [..., 32]."""
    halves = np.concatenate([numbers[..., 1:] & 15, numbers[..., 1:] >> 4], axis=-1)
    return (halves.view(np.int8) - numbers[..., :1].view(np.int8)).view(np.uint8)


def _bytes_of_floats(numbers: Raw) -> Raw:
    """The same of floats of four bits, twice their values."""
    halves = np.concatenate([numbers & 15, numbers >> 4], axis=-1)
    twice: Raw = _TWICE_FLOATS[halves].view(np.uint8)
    return twice


_REPACKED: dict[tuple[str, str], Callable[[Raw], Raw]] = {
    ("q8_0", "int8"): _as_they_are,
    ("q4_0", "int4"): _as_they_are,
    ("q4_0", "int8"): _bytes_of_halves,
    ("mxfp4", "mxfp4"): _as_they_are,
    ("awq", "int8"): _bytes_above_zero_points,
}
"""Type of blocks, our encoding -> our numbers of the blocks' numbers."""
_NUMBERS = {
    "q8_0": _as_they_are,
    "q4_0": _bytes_of_halves,
    "mxfp4": _bytes_of_floats,
    "awq": _bytes_above_zero_points,
}
"""Type of blocks -> signed bytes, one a weight."""
