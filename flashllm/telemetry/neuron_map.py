"""Which neurons are in DRAM, and what the last token did with them: layers by blocks of neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the terminal application asks for no arrays until there is a map
    import numpy as np
    from numpy.typing import NDArray

    Shares = NDArray[np.uint8]
    Mask = NDArray[np.bool_]

ABSENT, RESIDENT, HIT, LOADED = range(4)
"""States of a block, from common to rare. A block is resident if at least half of it is; it is hit
or loaded if no less of it was than of the mean block. So few neurons stay visible, and many show
where they are."""
BLOCKS_MOST = 256
"""As many as the widest terminal shows, and few enough to be sent about five times per second."""
WHOLE, HALF = 255, 128


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMap:
    """A picture of all layers between two tokens; arrays are uint8 [layers, blocks]."""

    layers: int
    blocks: int
    neurons: int
    """Neurons of a layer; a block covers about `neurons // blocks` of them."""
    states: Shares
    """ABSENT, RESIDENT, HIT or LOADED: the last one that is true of the block."""
    resident: Shares
    """Share of a block's neurons that are in DRAM; 255 is all of them."""
    hit: Shares
    """Likewise, neurons that the last token used and found in DRAM."""
    loaded: Shares
    """Likewise, neurons that the last token used and read from flash."""
    totals: tuple[float, float, float]
    """The shares of the three among all neurons, unrounded."""
    noun: str = "neuron"
    """What the model's bundles are, for people; neurons stand for experts too."""

    @classmethod
    def of(
        cls,
        marks: Sequence[tuple[Mask, Mask, Mask]],
        blocks_most: int = BLOCKS_MOST,
        noun: str = "neuron",
    ) -> NeuronMap:
        """The map from masks [n] of each layer: resident, hit and loaded neurons."""
        import numpy as np

        neurons = len(marks[0][0])
        blocks = min(neurons, blocks_most)
        resident, hit, loaded = (
            np.stack([_shares(layer[kind], blocks) for layer in marks]) for kind in range(3)
        )
        counts = [sum(int(np.count_nonzero(layer[kind])) for layer in marks) for kind in range(3)]
        whole = neurons * len(marks)
        totals = (counts[0] / whole, counts[1] / whole, counts[2] / whole)
        return cls._of_shares(neurons, totals, resident, hit, loaded, noun)

    def reduced(self, rows_most: int, columns_most: int) -> NeuronMap:
        """The map reduced to at most that many layers and blocks, by merging neighbours."""
        rows, columns = min(self.layers, rows_most), min(self.blocks, columns_most)
        if (rows, columns) == (self.layers, self.blocks):
            return self
        resident, hit, loaded = (
            _means(_means(shares, rows, 0), columns, 1)
            for shares in (self.resident, self.hit, self.loaded)
        )
        return self._of_shares(self.neurons, self.totals, resident, hit, loaded, self.noun)

    @classmethod
    def _of_shares(
        cls,
        neurons: int,
        totals: tuple[float, float, float],
        resident: Shares,
        hit: Shares,
        loaded: Shares,
        noun: str,
    ) -> NeuronMap:
        import numpy as np

        states = np.where(resident >= HALF, RESIDENT, ABSENT).astype(np.uint8)
        states[(hit > 0) & (hit >= hit.mean())] = HIT
        states[(loaded > 0) & (loaded >= loaded.mean())] = LOADED
        layers, blocks = states.shape
        return cls(layers, blocks, neurons, states, resident, hit, loaded, totals, noun)


def _shares(mask: Mask, blocks: int) -> Shares:
    """The marked share of each block; a single neuron is never rounded to 0."""
    import numpy as np

    edges = np.linspace(0, len(mask), blocks + 1).astype(np.intp)
    counts = np.add.reduceat(mask.astype(np.int32), edges[:-1])
    return np.ceil(counts * WHOLE / np.diff(edges)).astype(np.uint8)


def _means(shares: Shares, count: int, axis: int) -> Shares:
    """Means of `count` groups of neighbours along an axis; small values are never rounded to 0."""
    import numpy as np

    edges = np.linspace(0, shares.shape[axis], count + 1).astype(np.intp)
    sums = np.add.reduceat(shares.astype(np.int32), edges[:-1], axis=axis)
    sizes = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
    return np.ceil(sums / sizes).astype(np.uint8)
