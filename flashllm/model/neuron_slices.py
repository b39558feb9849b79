"""What the neurons of a layer add to the outputs of several tokens: of each token only its own.

A tile multiplies every token with every neuron that any of them needs, at the rate of a matrix
product; here each token's own rows are multiplied, at that of scattered rows. Where tokens share
few of their neurons this is less work, and both give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm.model.neurons import Neurons
from flashllm.model.token_sets import BlockSlice
from flashllm.weight_cache.block_stream import Block

_TILE_GAIN = 4
"""How many times as many products a second tiles do, at the least: 5.4 times in f16, 3.8 in int8
and 3.2 in int4 were measured, with rows that come from beyond the caches."""


def is_less_work(wanted: NDArray[np.bool_]) -> bool:
    """Whether slices are worth it for tokens that want these of a layer's bundles [tokens, n]."""
    union = np.count_nonzero(wanted.any(axis=0))
    return bool(_TILE_GAIN * np.count_nonzero(wanted) < len(wanted) * union)


@dataclass(frozen=True, slots=True)
class NeuronSlices:
    """Adds each token's own neurons of a tile to its output."""

    neurons: Neurons
    layer: int
    x: NDArray[np.float32]  # [tokens, d_model]
    gates: NDArray[np.float32] | None
    """Outputs of the resident gate, [tokens, d_ffn]."""
    wanted: NDArray[np.bool_]
    """Which bundles of the layer each token needs, [tokens, bundles]."""
    tile: int
    """Bundles of a block that are given at a time."""

    def add(self, tile: Block, out: Tensor) -> Tensor:
        """Adds a tile to `out`; [tokens, bundles], zero where a token does not use a bundle."""
        ids, _, _ = tile.parts()
        tokens, columns = np.nonzero(self.wanted[:, tile.columns])
        hidden = np.zeros((len(self.x), len(tile)), np.float32)
        ends = np.cumsum(np.bincount(tokens, minlength=len(self.x))).astype(np.int32)
        own = BlockSlice(ids[columns], tokens.astype(np.int32), ends)
        hidden[tokens, columns] = self.neurons.add_block_slice(
            self.layer, tile, own, self.x, self.gates, out.numpy()
        )
        return torch.from_numpy(hidden)
