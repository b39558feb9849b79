"""Encoded tensors in memory: decoding them, and checking that all weights are finite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import GROUP_BYTES, SCALE_BYTES, row_bytes, row_scale_bytes

# Exponent bits that are all set mean infinity or NaN. Such values are the largest of their sign as
# whole numbers: above 0 as signed ones, below 0 as unsigned ones. So two maxima find them.
_INFINITY = {
    "f32": (np.uint32, 0x7F800000),
    "f16": (np.uint16, 0x7C00),
    "bf16": (np.uint16, 0x7F80),
}
MXFP4_SCALE_MOST = 252
"""With a larger one, some of the numbers are beyond f32."""
_BLOCK_BYTES = 256 << 10
"""Stays in a cache from the first look to the second."""


def all_finite(raw: NDArray[np.uint8], dtype: str, columns: int = 0) -> bool:
    """Whether no encoded value is an infinity or a NaN; in blocks, so that memory stays bounded.

    In groups only scales can be; `raw` then holds rows of `columns` weights. In mxfp4 a scale is
    finite if with it all numbers are.
    """
    if dtype not in GROUP_BYTES:
        return _finite(raw, dtype)
    row = row_bytes(dtype, columns)
    scales = raw.reshape(-1, row)[:, -row_scale_bytes(dtype, columns) :]
    if SCALE_BYTES[dtype] == 1:
        return bool(scales.max(initial=0) <= MXFP4_SCALE_MOST)
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


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Encoded values as they lie in memory: `raw` is [nbytes] of `dtype`, row-major in `shape`.

    The shape counts weights, also in encodings by groups.
    """

    raw: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]
    is_tiled: bool = False
    """Whether its rows lie in tiles instead (`core.Kernels.tile_matrix`): nothing but `matmul`
    and `decode_tiles` reads it then."""

    def floats(self) -> NDArray[np.float32]:
        """A decoded copy."""
        assert not self.is_tiled
        if self.dtype in GROUP_BYTES:
            return decode_matrix(self)
        if self.dtype == "f32":
            values = self.raw.view(np.float32).copy()
        elif self.dtype == "f16":
            values = self.raw.view(np.float16).astype(np.float32)
        else:
            wide = self.raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
            values = wide.view(np.float32)
        decoded: NDArray[np.float32] = values.reshape(self.shape)
        return decoded


def decode_matrix(tensor: RawTensor) -> NDArray[np.float32]:
    """A decoded copy of a matrix in any encoding, by the core."""
    n_rows, columns = tensor.shape
    out = np.empty(n_rows * columns, np.float32)
    kernels = core.Kernels(threads=1)
    ids = np.arange(n_rows, dtype=np.int32)
    nbytes = row_bytes(tensor.dtype, columns)
    kernels.decode_rows(tensor.raw, nbytes, 0, tensor.dtype, ids, columns, out)
    kernels.close()
    return out.reshape(tensor.shape)
