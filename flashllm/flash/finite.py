"""Whether encoded weights are numbers: an infinity or a NaN among them means damage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashllm.spec import GROUP, GROUP_BYTES, row_bytes

# The exponent bits: all set means infinity or NaN.
_EXPONENT = {"f32": np.uint32(0x7F800000), "f16": np.uint16(0x7C00), "bf16": np.uint16(0x7F80)}
_BLOCK_BYTES = 4 << 20


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
    exponent = _EXPONENT[dtype]
    for start in range(0, len(raw), _BLOCK_BYTES):
        bits = raw[start : start + _BLOCK_BYTES].view(exponent.dtype)
        if np.any((bits & exponent) == exponent):
            return False
    return True
