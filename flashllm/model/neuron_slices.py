"""What the neurons of a layer add to the outputs of several tokens: of each token only its own.

A tile multiplies every token with every neuron of a block, at the rate of a matrix product; here
each token's own rows are multiplied, at that of scattered rows. Where tokens need few of the
neurons this is less work, and both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.large_arrays import Floats
from flashllm.model.active_set_selectors import ActiveMask
from flashllm.model.ffn_neurons import NeuronTiles, Used
from flashllm.model.neurons import Neurons
from flashllm.model.token_sets import BlockSlice
from flashllm.weight_cache.block_stream import Block

Wanted = Callable[[Block], NDArray[np.bool_]]
"""Which bundles of a block each token needs: [tokens, bundles]."""

_TILE_GAIN = 4
"""How many times as many products a second tiles do, at the least: 5.4 times in f16, 3.8 in int8
and 3.2 in int4 were measured, with rows that come from beyond the caches."""
_STRIP_BYTES = 512 << 10
"""What tokens want is asked for so many truths at a time. Their scores take four times as much; and
a predictor's inner vectors are packed anew each time, which is most of the work for few bundles."""


def is_less_work(wanted: NDArray[np.bool_]) -> bool:
    """Whether slices are worth it for tokens that want these of a block's bundles [tokens, n]."""
    return bool(_TILE_GAIN * np.count_nonzero(wanted) < wanted.size)


class WantedStrips:
    """Which bundles of a layer's blocks each token needs, asked for some blocks at a time.

    Blocks come in ascending order, so that the memory of a strip is enough.
    """

    def __init__(self, active: ActiveMask, tokens: int, bundles: int) -> None:
        """`bundles`: of the layer."""
        self._active = active
        self._bundles = bundles
        self._width = max(_STRIP_BYTES // tokens, 1)
        self._first = 0
        self._strip: NDArray[np.bool_] = np.empty((tokens, 0), dtype=np.bool_)

    def __call__(self, block: Block) -> NDArray[np.bool_]:
        """Those of a block of neighbours: [tokens, bundles]."""
        assert block.some is None, "a layer that is read whole comes in neighbours"
        first, end = block.first, block.first + len(block)
        if not self._first <= first <= end <= self._first + self._strip.shape[1]:
            self._first = first
            # Whole blocks: the next one begins where this strip ends.
            width = max(self._width // len(block), 1) * len(block)
            self._strip = self._active.among(first, min(width, self._bundles - first))
        return self._strip[:, first - self._first : end - self._first]


@dataclass(frozen=True, slots=True)
class NeuronSlices:
    """Adds to the outputs of tokens the neurons of a block that each needs, with least work."""

    neurons: Neurons
    tiles: NeuronTiles
    """What multiplies all of them."""
    layer: int
    x: NDArray[np.float32]  # [tokens, d_model]
    gates: NDArray[np.float32] | None
    """Outputs of the resident gate, [tokens, d_ffn]."""
    wanted: Wanted
    tile: int
    """Bundles of a block that are given at a time."""

    def add(self, tile: Block, out: Floats) -> Used:
        """Adds a block to `out`."""
        wanted = self.wanted(tile)
        if is_less_work(wanted):
            return self._add_own(tile, wanted, out)
        pieces = [self.tiles.add(piece, out) for piece in tile.pieces(self.tiles.tile)]
        if len(pieces) == 1:
            return pieces[0]
        return lambda first: np.concatenate([used(first) for used in pieces], axis=1)

    def _add_own(self, tile: Block, wanted: NDArray[np.bool_], out: Floats) -> Used:
        ids, _, _ = tile.parts()
        ends = np.empty(len(wanted), np.int32)
        columns = np.empty(np.count_nonzero(wanted), np.int32)
        if wanted.strides[1] != 1:  # some columns of a layer come one below the other
            wanted = np.ascontiguousarray(wanted)
        core.true_columns(wanted, columns, ends)
        own = BlockSlice(ids[columns], ends)
        outputs = self.neurons.add_block_slice(self.layer, tile, own, self.x, self.gates, out)

        bundles = wanted.shape[1]

        def used(first: int) -> Floats:
            begin = int(ends[first - 1]) if first else 0
            counts = np.diff(ends[first:], prepend=np.int32(begin))
            hidden = np.zeros((len(counts), bundles), np.float32)
            hidden[np.repeat(np.arange(len(counts)), counts), columns[begin:]] = outputs[begin:]
            return hidden

        return used
