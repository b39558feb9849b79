"""Resident matrices and vectors stay as converted; rows of them are decoded to f32 where needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import row_bytes
from flashllm.flash.matrix_rows import MatrixRows
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.row_memory import ROWS_AT_ONCE
from flashllm.large_arrays import LARGE_ARRAYS, Floats


@dataclass(frozen=True, slots=True)
class Table:
    """Looks up rows, in f32, of a matrix that stays encoded in DRAM."""

    weight: RawTensor
    kernels: core.Kernels

    def __call__(self, ids: Sequence[int]) -> Floats:
        """[n] to [n, columns]."""
        out = LARGE_ARRAYS.empty(len(ids), self.weight.shape[1])
        decode(self.weight, self.kernels, np.array(ids, np.int32), out)
        return out


@dataclass(frozen=True, slots=True)
class FlashTable:
    """The same of a matrix that stays on flash."""

    rows: MatrixRows
    columns: int
    kernels: core.Kernels

    def __call__(self, ids: Sequence[int]) -> Floats:
        """[n] to [n, columns]; errors of `MatrixRows.read`."""
        out, numbers = LARGE_ARRAYS.empty(len(ids), self.columns), np.array(ids, np.int32)
        dtype = self.rows.dtype
        for first in range(0, len(ids), ROWS_AT_ONCE):
            some = out[first : first + ROWS_AT_ONCE]
            raw = self.rows.read(numbers[first : first + ROWS_AT_ONCE])
            rows = RawTensor(raw, dtype, some.shape)
            decode(rows, self.kernels, np.arange(len(some), dtype=np.int32), some)
        return out


def decode(weight: RawTensor, kernels: core.Kernels, ids: NDArray[np.int32], out: Floats) -> None:
    """The rows `ids` of a matrix, decoded into `out` [n, columns]."""
    columns, dtype = weight.shape[1], weight.dtype
    values = out.reshape(-1)
    if weight.is_tiled:
        kernels.decode_tiles(weight.raw, dtype, ids, columns, values)
    else:
        kernels.decode_rows(weight.raw, row_bytes(dtype, columns), 0, dtype, ids, columns, values)
