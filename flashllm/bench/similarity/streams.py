"""How alike what goes into a layer is to what was known a layer earlier."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flashllm.large_arrays import Floats

SOURCES = ("input before", "attention before", "feed-forward before", "stream behind attention")
"""What a layer's input is held against: the input of the layer before, what its attention and its
feed-forward layer added (table 1 of InfiniGen, arXiv 2406.19707), and the stream between the two,
from which queries are guessed."""


@dataclass(slots=True)
class StreamSums:
    """Of one layer: cosines of its input with each of `SOURCES`, summed over `tokens`."""

    cosines: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0.0))
    tokens: int = 0


class StreamMeter:
    """Is told of each layer as tokens go through it; sums of all layers but the first."""

    def __init__(self, n_layers: int) -> None:
        self.sums = {layer: StreamSums() for layer in range(1, n_layers)}
        self._before: dict[str, Floats] = {}

    def __call__(self, layer: int, came: Floats, behind: Floats, left: Floats) -> None:
        """The stream [tokens, d_model] as it came, behind attention, and as it left."""
        if layer:
            sums = self.sums[layer]
            for name, other in self._before.items():
                sums.cosines[name] += _sum_of_cosines(came, other)
            sums.tokens += len(came)
        parts = came, behind - came, left - behind, behind
        self._before = dict(zip(SOURCES, parts, strict=True))

    def means(self, layer: int) -> dict[str, float]:
        """The mean cosine of each source; not a number where nothing was measured."""
        sums = self.sums[layer]
        tokens = sums.tokens or np.nan
        return {name: found / tokens for name, found in sums.cosines.items()}


def _sum_of_cosines(one: Floats, other: Floats) -> float:
    """Of the angles between each token's two vectors, [tokens, d_model] both; 0 of no vector."""
    dots, one_squared, other_squared = (
        np.einsum("td,td->t", a, b, dtype=np.float64)
        for a, b in ((one, other), (one, one), (other, other))
    )
    lengths = np.sqrt(one_squared * other_squared)
    return float((dots / np.where(lengths == 0.0, 1.0, lengths)).sum())
