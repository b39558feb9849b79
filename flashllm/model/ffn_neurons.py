"""What the neurons of a layer add to the outputs of several tokens, tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flashllm.large_arrays import Floats
from flashllm.model.activations import activate, combine, margin
from flashllm.model.neurons import FeedForwardWeights
from flashllm.model.products import Products
from flashllm.spec import ModelSpec
from flashllm.weight_cache.block_stream import Block

Used = Callable[[int], Floats]
"""Makes what is not zero where a token uses a bundle of a tile, [tokens, bundles]: outputs of
neurons, weights of experts. Of tokens from a number on."""


@dataclass(frozen=True, slots=True)
class NeuronTiles:
    """Adds tiles of a layer's neurons to the outputs of tokens, all neurons of it or some."""

    spec: ModelSpec
    weights: FeedForwardWeights
    products: Products
    x: Floats  # [tokens, d_model]
    gate: Floats | None
    """What the resident gate gives, [tokens, d_ffn]."""
    silent: Callable[[Block], NDArray[np.bool_]] | None = None
    """Which neurons of a tile count as zero, [tokens, bundles]; None: none does."""
    margins: list[Floats] | None = field(default=None)
    """Gets the margins of each tile, [tokens, bundles], where somebody wants them."""

    @property
    def tile(self) -> int:
        """Bundles of a block that are multiplied together."""
        return self.products.tile

    def add(self, tile: Block, out: Floats) -> Used:
        """Adds a tile's products to `out`."""
        spec, weights = self.spec, self.weights
        up = self._project(tile, spec.rows_per_neuron - 2, weights.up_bias)
        deciding = up
        if self.gate is not None:
            deciding = self.gate[:, tile.columns]
        elif spec.gate == "bundled":
            deciding = self._project(tile, 0, weights.gate_bias)
        if self.margins is not None:
            self.margins.append(margin(spec, deciding, up))
        hidden = activate(spec, deciding)
        if spec.gated:
            hidden = combine(spec, hidden, up)
        if self.silent is not None:
            hidden[self.silent(tile)] = 0.0
        self.products.add_down(tile, hidden, out)
        return lambda first: hidden[first:]

    def _project(self, tile: Block, row: int, bias: Floats | None) -> Floats:
        """[tokens, d_model] to [tokens, bundles] by a row of each bundle and its bias."""
        out = self.products.with_rows(tile, row, self.x)
        if bias is not None:
            out += bias[tile.columns]
        return out
