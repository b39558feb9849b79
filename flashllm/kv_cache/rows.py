"""Writing keys and values as encoded rows: what cannot be written is an error that says why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.errors import ModelError
from flashllm.options import KvDType


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes rows of a model's key heads in one encoding."""

    kernels: core.Kernels
    dtype: KvDType
    columns: int
    kv_heads: int

    def write(
        self, layer: int, name: str, rows: Tensor, position: int, cache: NDArray[np.uint8]
    ) -> None:
        """Rows [kv_heads, tokens, columns] to `cache`, [kv_heads, capacity, row], at `position`.

        `name` is key or value. `ModelError` for NaN, infinity, or what the encoding cannot hold.
        """
        floats = rows.contiguous().view(-1).numpy()
        try:
            self.kernels.write_head_rows(
                floats, self.dtype, self.columns, self.kv_heads, position, cache
            )
        except OverflowError as error:
            raise ModelError(
                f"layer {layer}: a {name} of attention is too large for the cache's encoding,"
                f" {self.dtype} ({error}); use --kv-dtype f32"
            ) from error
        except ValueError as error:
            raise ModelError(
                f"layer {layer}: a {name} of attention is no number, since what the model"
                " computes overflows f32; its weights are damaged, or its activation is not the"
                " one it was trained with"
            ) from error
