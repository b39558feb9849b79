"""Encodings of a GGUF's weights, and random weights in them.

In q8_0 and q4_0 a row is groups of 32 weights: a scale in f16, then 32 signed bytes, or 16 bytes
of two weights each, plus 8; in mxfp4 a scale is a byte, the exponent of two, and a weight a float
of four bits. Random ones are made as they lie there, not rounded from floats: what a
dense runtime takes for a token does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP = 32
_SCALE_BYTES = 2
# Of halves, sign and mantissa are random and the exponent is fixed: no zeros, subnormals or NaN.
_SIGN_AND_MANTISSA, _MANTISSA = np.uint16(0x83FF), np.uint16(0x03FF)
_FROM_64TH = np.uint16(0x2400)  # 1/64 to 1/32
_SCALE_OF_BYTES = np.uint16(0x0800)  # times 127 at most 1/32
_SCALE_OF_NIBBLES = np.uint16(0x1800)  # times 8 at most 1/32
_EXPONENTS_OF_FLOATS = (118, 120)  # times 6 at most 3/128


@dataclass(frozen=True, slots=True)
class Encoding:
    """How weights of a matrix are stored: the weights and the bytes of a group."""

    name: str
    group: int
    group_bytes: int
    dtype: np.dtype[Any]
    """What `random` gives."""
    random: Callable[[np.random.Generator, int, int], NDArray[Any]]
    """Rows and columns to weights as they lie in the file, [rows, ...]."""

    def nbytes(self, weights: int) -> int:
        """Bytes of whole groups."""
        return -(-weights // self.group) * self.group_bytes


def encoding_of(dtype: str) -> Encoding:
    """The encoding with as many bits as one of our own."""
    return ENCODINGS[OURS[dtype]]


def _halves(generator: np.random.Generator, rows: int, columns: int) -> NDArray[np.float16]:
    bits = _bits(generator, rows * columns, _SIGN_AND_MANTISSA, _FROM_64TH)
    return bits.view(np.float16).reshape(rows, columns)


def _floats(generator: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return _halves(generator, rows, columns).astype(np.float32)


def _bytes(generator: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    groups = _groups(generator, rows, columns, GROUP, _SCALE_OF_BYTES)
    weights = groups[:, _SCALE_BYTES:].view(np.int8)
    np.maximum(weights, np.int8(-127), out=weights)
    return groups.reshape(rows, -1)


def _nibbles(generator: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    return _groups(generator, rows, columns, GROUP // 2, _SCALE_OF_NIBBLES).reshape(rows, -1)


def _small_floats(generator: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    count = rows * columns // GROUP
    found = np.empty((count, 1 + GROUP // 2), np.uint8)
    found[:, 0] = generator.integers(*_EXPONENTS_OF_FLOATS, count, np.uint8)
    found[:, 1:] = np.frombuffer(generator.bytes(count * GROUP // 2), np.uint8).reshape(count, -1)
    return found.reshape(rows, -1)


def _groups(
    generator: np.random.Generator, rows: int, columns: int, nbytes: int, scale: np.uint16
) -> NDArray[np.uint8]:
    """Groups of `nbytes` random bytes behind a scale: [groups, 2 + nbytes]."""
    count = rows * columns // GROUP
    found = np.empty((count, _SCALE_BYTES + nbytes), np.uint8)
    found[:, :_SCALE_BYTES] = (
        _bits(generator, count, _MANTISSA, scale).view(np.uint8).reshape(-1, 2)
    )
    found[:, _SCALE_BYTES:] = np.frombuffer(generator.bytes(count * nbytes), np.uint8).reshape(
        count, nbytes
    )
    return found


def _bits(
    generator: np.random.Generator, count: int, drawn: np.uint16, fixed: np.uint16
) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = np.frombuffer(generator.bytes(2 * count), np.uint16).copy()
    bits &= drawn
    bits |= fixed
    return bits


ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        Encoding("f32", 1, 4, np.dtype(np.float32), _floats),
        Encoding("f16", 1, 2, np.dtype(np.float16), _halves),
        Encoding("q8_0", GROUP, _SCALE_BYTES + GROUP, np.dtype(np.uint8), _bytes),
        Encoding("q4_0", GROUP, _SCALE_BYTES + GROUP // 2, np.dtype(np.uint8), _nibbles),
        Encoding("mxfp4", GROUP, 1 + GROUP // 2, np.dtype(np.uint8), _small_floats),
    )
}
OURS = {
    "f32": "f32", "f16": "f16", "bf16": "f16", "int8": "q8_0", "int4": "q4_0", "mxfp4": "mxfp4"
}  # fmt: skip
"""Of a model of ours, the encoding of a GGUF with as many bits."""
