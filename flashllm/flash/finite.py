"""Whether encoded weights are numbers: an infinity or a NaN among them means damage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashllm.spec import GROUP, GROUP_BYTES, row_bytes

# Exponent bits that are all set mean infinity or NaN. Such values are the largest of their sign as
# whole numbers: above 0 as signed ones, below 0 as unsigned ones. So two maxima find them.
_INFINITY = {
    "f32": (np.uint32, 0x7F800000),
    "f16": (np.uint16, 0x7C00),
    "bf16": (np.uint16, 0x7F80),
}
_BLOCK_BYTES = 256 << 10
"""Stays in a cache from the first look to the second."""


def all_finite(raw: NDArray[np.uint8], dtype: str, columns: int = 0) -> bool:
    """Whether no encoded value is an infinity or a NaN; in blocks, so that memory stays bounded.

    In int8 and int4 it is the scales that may be; `raw` then holds rows of `columns` weights.
    """
    if dtype not in GROUP_BYTES:
        return _finite(raw, dtype)
    row = row_bytes(dtype, columns)
    scale_bytes = 2 * -(-columns // GROUP)
    scales = raw.reshape(-1, row)[:, -scale_bytes:]
    step = max(_BLOCK_BYTES // row, 1)
    return all(
        _finite(np.ascontiguousarray(scales[first : first + step]).reshape(-1), "f16")
        for first in range(0, len(scales), step)
    )


def _finite(raw: NDArray[np.uint8], dtype: str) -> bool:
    unsigned, infinity = _INFINITY[dtype]
    values = raw.view(unsigned)
    signed = np.dtype(f"i{values.itemsize}")
    minus_infinity = infinity | 1 << 8 * values.itemsize - 1
    step = _BLOCK_BYTES // values.itemsize
    for start in range(0, len(values), step):
        bits = values[start : start + step]
        if bits.view(signed).max() >= infinity or bits.max() >= minus_infinity:
            return False
    return True
