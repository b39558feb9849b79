"""Products of weight rows with the vectors of tokens: the only place where tokens meet.

Whether a token's product has the same bits alone and among others decides where a prompt may be cut
into chunks, and where a cached prefix may end (`kv_cache.context_tokens`). So the products
themselves declare it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.model.encoded_rows import TORCH_DTYPES, decode, torch_view
from flashllm.model.tile_decoder import TileDecoder
from flashllm.planning.plan import PrefillShape
from flashllm.spec import ModelSpec
from flashllm.weight_cache.block_stream import Block
from flashllm.weight_cache.blocks import block_ends


class Products(Protocol):
    """Multiplies rows with the vectors of one token or of several, in f32."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's product with a token has the same bits alone and among any others."""
        ...

    def with_matrix(self, weight: RawTensor, x: Tensor) -> Tensor:
        """`x @ weight.T` of an encoded weight [out, in]: [tokens, in] to [tokens, out]."""
        ...

    @property
    def tile(self) -> int:
        """Bundles of a block that are multiplied together."""
        ...

    def with_rows(self, block: Block, row: int, x: Tensor) -> Tensor:
        """`x` times row number `row` of each bundle: [tokens, d_model] to [tokens, bundles]."""
        ...

    def add_down(self, block: Block, hidden: Tensor, out: Tensor) -> None:
        """Adds the last row of each bundle times `hidden` [tokens, bundles] to `out`."""
        ...


def make_products(spec: ModelSpec, kernels: core.Kernels, shape: PrefillShape) -> Products:
    """What multiplies fastest: the kernels leave out neurons that are silent, torch leaves none.

    Experts are matrices, of which a token has some only; these are the kernels' too.
    """
    if spec.selective:
        return RowProducts(spec, kernels, shape.bundles)
    return TokenOrChunkProducts(kernels, shape.linear_rows, TileDecoder(spec, kernels, shape.tile))


class RowProducts:
    """Our kernels over encoded rows: each of the tokens has the bits that it has alone."""

    batch_invariant = True

    def __init__(self, spec: ModelSpec, kernels: core.Kernels, tile: int) -> None:
        """`tile` bundles are multiplied together."""
        self.tile = tile
        self._spec = spec
        self._kernels = kernels

    def with_matrix(self, weight: RawTensor, x: Tensor) -> Tensor:
        """As `Products` has it."""
        out = torch.empty(x.shape[0], weight.shape[0])
        self._kernels.matmul(weight.raw, weight.dtype, x.contiguous().numpy(), out.numpy())
        return out

    def with_rows(self, block: Block, row: int, x: Tensor) -> Tensor:
        """As `Products` has it."""
        out = torch.empty(x.shape[0], len(block))
        self._kernels.dot_rows_all(*self._rows(block, row), x.contiguous().numpy(), out.numpy())
        return out

    def add_down(self, block: Block, hidden: Tensor, out: Tensor) -> None:
        """As `Products` has it."""
        ids, _, _ = block.parts()
        where = self._rows(block, self._spec.rows_per_neuron - 1)
        weights = hidden.contiguous().numpy()
        self._kernels.weighted_sum_rows_all(*where, weights, block_ends(ids), out.numpy())

    def _rows(
        self, block: Block, row: int
    ) -> tuple[NDArray[np.uint8], int, int, str, NDArray[np.int32]]:
        spec = self._spec
        return block.rows, block.stride, row * spec.row_bytes, spec.dtype, block.positions


class TokenOrChunkProducts:
    """One token through our row kernels, at the speed of DRAM; a chunk through torch.

    torch picks its order of summation by the number of tokens, so the last bits follow the chunk.
    """

    batch_invariant = False

    def __init__(
        self, kernels: core.Kernels, block_rows: int, decode: TileDecoder | None = None
    ) -> None:
        """`block_rows` of a matrix are decoded at a time for a chunk; `decode` decodes bundles."""
        self._decode = decode
        self._decoded_tile: tuple[Block, Tensor] | None = None
        self._kernels = kernels
        self._block_rows = block_rows
        self._scratch = torch.empty(0)
        """Memory for decoded rows; of its own, since the kernel would give zeros for every block
        of a matrix anew."""

    def with_matrix(self, weight: RawTensor, x: Tensor) -> Tensor:
        """As `Products` has it."""
        return self._of_token(weight, x) if x.shape[0] == 1 else self._of_chunk(weight, x)

    @property
    def tile(self) -> int:
        """As `Products` has it."""
        return self._tiles.tile

    def with_rows(self, block: Block, row: int, x: Tensor) -> Tensor:
        """As `Products` has it."""
        out: Tensor = x @ self._rows(block)[:, row].T
        return out

    def add_down(self, block: Block, hidden: Tensor, out: Tensor) -> None:
        """As `Products` has it."""
        out.addmm_(hidden, self._rows(block)[:, -1])

    @property
    def _tiles(self) -> TileDecoder:
        assert self._decode is not None, "made for matrices only"
        return self._decode

    def _rows(self, block: Block) -> Tensor:
        """[bundles, rows of a neuron, d_model] of a tile, decoded once for all of its rows."""
        if self._decoded_tile is None or self._decoded_tile[0] is not block:
            self._decoded_tile = block, self._tiles(block)
        return self._decoded_tile[1]

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
