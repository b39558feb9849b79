"""Products of weight rows with the vectors of tokens: the only place where tokens meet.

Whether a token's product has the same bits alone and among others decides where a prompt may be cut
into chunks, and where a cached prefix may end (`kv_cache.context_tokens`). So the products
themselves declare it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.model.encoded_rows import TORCH_DTYPES, decode, torch_view


class Products(Protocol):
    """Multiplies rows with the vectors of one token or of several, in f32."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's product with a token has the same bits alone and among any others."""
        ...

    def with_matrix(self, weight: RawTensor, x: Tensor) -> Tensor:
        """`x @ weight.T` of an encoded weight [out, in]: [tokens, in] to [tokens, out]."""
        ...

    def with_tile(self, rows: Tensor, x: Tensor) -> Tensor:
        """`x @ rows.T` of decoded rows [bundles, in]: [tokens, in] to [tokens, bundles]."""
        ...

    def add_down(self, rows: Tensor, hidden: Tensor, out: Tensor) -> None:
        """Adds `hidden @ rows` to `out`: [tokens, bundles] and [bundles, d_model]."""
        ...


class TokenOrChunkProducts:
    """One token through our row kernels, at the speed of DRAM; a chunk through torch.

    torch picks its order of summation by the number of tokens, so the last bits follow the chunk.
    """

    batch_invariant = False

    def __init__(self, kernels: core.Kernels, block_rows: int) -> None:
        """`block_rows` of a matrix are decoded at a time for a chunk."""
        self._kernels = kernels
        self._block_rows = block_rows
        self._scratch = torch.empty(0)
        """Memory for decoded rows; of its own, since the kernel would give zeros for every block
        of a matrix anew."""

    def with_matrix(self, weight: RawTensor, x: Tensor) -> Tensor:
        """As `Products` has it."""
        return self._of_token(weight, x) if x.shape[0] == 1 else self._of_chunk(weight, x)

    def with_tile(self, rows: Tensor, x: Tensor) -> Tensor:
        """As `Products` has it."""
        out: Tensor = x @ rows.T
        return out

    def add_down(self, rows: Tensor, hidden: Tensor, out: Tensor) -> None:
        """As `Products` has it."""
        out.addmm_(hidden, rows)

    def _of_token(self, weight: RawTensor, x: Tensor) -> Tensor:
        out = torch.empty(1, weight.shape[0])
        self._kernels.matvec(weight.raw, weight.dtype, x.contiguous().numpy()[0], out.numpy()[0])
        return out

    def _of_chunk(self, weight: RawTensor, x: Tensor) -> Tensor:
        if weight.dtype == "f32":
            whole: Tensor = x @ torch_view(weight).T
            return whole
        n_rows = weight.shape[0]
        out = torch.empty(x.shape[0], n_rows)
        # Only a block of rows is ever decoded, so a narrow matrix never exists twice.
        for start in range(0, n_rows, self._block_rows):
            rows = self._decoded(weight, start, min(start + self._block_rows, n_rows))
            out[:, start : start + len(rows)] = x @ rows.T
        return out

    def _decoded(self, weight: RawTensor, start: int, stop: int) -> Tensor:
        """Rows of a weight in f32; the next call overwrites them."""
        rows, columns = stop - start, weight.shape[1]
        if self._scratch.numel() < rows * columns:
            with torch.inference_mode(False):  # so that any caller may write to it later
                self._scratch = torch.empty(self._block_rows * columns)
        out = self._scratch[: rows * columns].view(rows, columns)
        if weight.dtype in TORCH_DTYPES:
            return out.copy_(torch_view(weight)[start:stop])
        decode(weight, self._kernels, np.arange(start, stop, dtype=np.int32), out)
        return out
