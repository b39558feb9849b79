"""Writing keys and values as encoded rows: what cannot be written is an error that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.errors import ModelError
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.options import KvDType


def in_order(x: Floats) -> NDArray[np.float32]:
    """The numbers of an array, one after another; a copy where they lie otherwise."""
    if not x.flags.c_contiguous:
        x, given = LARGE_ARRAYS.empty(*x.shape), x
        np.copyto(x, given)
    return x.reshape(-1)


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes rows of a model's key heads in one encoding."""

    kernels: core.Kernels
    dtype: KvDType
    columns: int
    kv_heads: int

    def write(
        self, layer: int, name: str, rows: Floats, position: int, cache: NDArray[np.uint8]
    ) -> None:
        """Rows [kv_heads, tokens, columns] to `cache`, [kv_heads, capacity, row], at `position`.

        `name` is key or value. `ModelError` for NaN, infinity, or what the encoding cannot hold.
        """
        floats = in_order(rows)
        try:
            self.kernels.write_head_rows(
                floats, self.dtype, self.columns, self.kv_heads, position, cache
            )
        except (OverflowError, ValueError) as error:
            raise self._named(error, layer, name) from error

    def write_each(
        self,
        layer: int,
        name: str,
        rows: Floats,
        positions: NDArray[np.int64],
        caches: Sequence[NDArray[np.uint8]],
    ) -> None:
        """The same of a token of each of several contexts, rows [contexts, kv_heads * columns]."""
        try:
            self.kernels.write_head_rows_each(
                rows, self.dtype, self.columns, self.kv_heads, positions, caches
            )
        except (OverflowError, ValueError) as error:
            raise self._named(error, layer, name) from error

    def error_of_projected(self, error: Exception, layer: int) -> ModelError:
        """Of a row that `attend_projected` refused: its error begins with key or value."""
        name, _, what = str(error).partition(": ")
        assert name in ("key", "value"), error
        return self._named(type(error)(what), layer, name)

    def _named(self, error: Exception, layer: int, name: str) -> ModelError:
        """What could not be written, and where: `name` is key or value."""
        if isinstance(error, OverflowError):
            return ModelError(
                f"layer {layer}: a {name} of attention is too large for the cache's encoding,"
                f" {self.dtype} ({error}); use --kv-dtype f32"
            )
        return ModelError(
            f"layer {layer}: a {name} of attention is no number, since what the model"
            " computes overflows f32; its weights are damaged, or its activation is not the"
            " one it was trained with"
        )
