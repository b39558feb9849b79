"""Products of weight rows with the vectors of tokens: the only place where tokens meet.

Each of the tokens has the bits that it has alone. So a prompt may be cut into any chunks, and a
cached prefix may end anywhere in it (`kv_cache.context_tokens`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.spec import ModelSpec
from flashllm.weight_cache.block_stream import Block
from flashllm.weight_cache.rounds import block_ends


class Products:
    """Multiplies encoded rows with the vectors of one token or of several, in f32."""

    def __init__(self, spec: ModelSpec, kernels: core.Kernels, tile: int) -> None:
        """`tile` bundles are multiplied together."""
        self.tile = tile
        self._spec = spec
        self._kernels = kernels

    def with_matrices(
        self, weights: Sequence[RawTensor], biases: Sequence[Floats | None], x: Floats
    ) -> list[Floats]:
        """`x @ weight.T + bias` of encoded weights [out, in]: [tokens, in] to [tokens, out] each.

        They are of one encoding, all in tiles or none.
        """
        one = weights[0]
        outs = [LARGE_ARRAYS.empty(x.shape[0], weight.shape[0]) for weight in weights]
        rows = [weight.raw for weight in weights]
        vectors = np.ascontiguousarray(x)
        self._kernels.matmul_several(rows, one.dtype, biases, vectors, outs, one.is_tiled)
        return outs

    def with_rows(self, block: Block, row: int, x: Floats) -> Floats:
        """`x` times row number `row` of each bundle: [tokens, d_model] to [tokens, bundles]."""
        out = LARGE_ARRAYS.empty(x.shape[0], len(block))
        self._kernels.dot_rows_all(*self._rows(block, row), np.ascontiguousarray(x), out)
        return out

    def add_down(self, block: Block, hidden: Floats, out: Floats) -> None:
        """Adds the last row of each bundle times `hidden` [tokens, bundles] to `out`."""
        ids, _, _ = block.parts()
        where = self._rows(block, self._spec.rows_per_neuron - 1)
        weights = np.ascontiguousarray(hidden)
        self._kernels.weighted_sum_rows_all(*where, weights, block_ends(ids), out)

    def _rows(
        self, block: Block, row: int
    ) -> tuple[NDArray[np.uint8], int, int, str, NDArray[np.int32]]:
        spec = self._spec
        return block.rows, block.stride, row * spec.row_bytes, spec.dtype, block.positions
