"""Which neurons are in DRAM, and what the last token did with them: layers by blocks of neurons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # arrays are the engine's: the terminal application does without them
    import numpy as np
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

Shares = tuple[bytes, ...]
"""A byte for each block of each layer; 255 is all of its neurons."""
ABSENT, RESIDENT, HIT, LOADED = range(4)
"""States of a block, from common to rare. A block is resident if at least half of it is; it is hit
or loaded if no less of it was than of the mean block. So few neurons stay visible, and many show
where they are."""
BLOCKS_MOST = 256
"""As many as the widest terminal shows, and few enough to be sent about five times per second."""
WHOLE, HALF = 255, 128


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMap:
    """A picture of all layers between two tokens."""

    neurons: int
    """Neurons of a layer; a block covers about `neurons // blocks` of them."""
    resident: Shares
    """Share of a block's neurons that are in DRAM."""
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
            tuple(_shares(layer[kind], blocks) for layer in marks) for kind in range(3)
        )
        counts = [sum(int(np.count_nonzero(layer[kind])) for layer in marks) for kind in range(3)]
        whole = neurons * len(marks)
        totals = (counts[0] / whole, counts[1] / whole, counts[2] / whole)
        return cls(neurons, resident, hit, loaded, totals, noun)

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.resident)

    @property
    def blocks(self) -> int:
        """Those of a layer."""
        return len(self.resident[0])

    def states(self) -> Shares:
        """ABSENT, RESIDENT, HIT or LOADED for each block: the last one that is true of it."""
        least_hit, least_loaded = _least_shown(self.hit), _least_shown(self.loaded)

        def state(resident: int, hit: int, loaded: int) -> int:
            if loaded >= least_loaded:
                return LOADED
            if hit >= least_hit:
                return HIT
            return RESIDENT if resident >= HALF else ABSENT

        layers = zip(self.resident, self.hit, self.loaded, strict=True)
        return tuple(bytes(map(state, *layer)) for layer in layers)

    def reduced(self, rows_most: int, columns_most: int) -> NeuronMap:
        """The map reduced to at most that many layers and blocks, by merging neighbours."""
        rows, columns = min(self.layers, rows_most), min(self.blocks, columns_most)
        if (rows, columns) == (self.layers, self.blocks):
            return self
        resident, hit, loaded = (
            _merged_blocks(_merged_layers(shares, rows), columns)
            for shares in (self.resident, self.hit, self.loaded)
        )
        return NeuronMap(self.neurons, resident, hit, loaded, self.totals, self.noun)


def _shares(mask: Mask, blocks: int) -> bytes:
    """The marked share of each block; a single neuron is never rounded to 0."""
    import numpy as np

    edges = np.linspace(0, len(mask), blocks + 1).astype(np.intp)
    counts = np.add.reduceat(mask.astype(np.int32), edges[:-1])
    return np.ceil(counts * WHOLE / np.diff(edges)).astype(np.uint8).tobytes()


def _least_shown(shares: Shares) -> float:
    """From where on a block stands out: the mean of all, and more than nothing."""
    return max(sum(map(sum, shares)) / (len(shares) * len(shares[0])), 1)


def _merged_layers(shares: Shares, count: int) -> Shares:
    """Means of `count` groups of neighbours."""
    groups = (shares[begin:end] for begin, end in _groups(len(shares), count))
    return tuple(bytes(map(_mean, zip(*group, strict=True))) for group in groups)


def _merged_blocks(shares: Shares, count: int) -> Shares:
    """The same in each layer."""
    groups = list(_groups(len(shares[0]), count))
    return tuple(bytes(_mean(layer[begin:end]) for begin, end in groups) for layer in shares)


def _mean(values: Sequence[int]) -> int:
    """Small values are never rounded to 0."""
    return -(-sum(values) // len(values))


def _groups(size: int, count: int) -> Iterator[tuple[int, int]]:
    """Where `count` groups of neighbours begin and end."""
    return ((size * at // count, size * (at + 1) // count) for at in range(count))
