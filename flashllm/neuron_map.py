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
"""States of a block; the later ones are rarer, and are what is shown of several in one place."""
BLOCKS_MOST = 256
"""As many as the widest terminal can show, and few enough to be sent about five times a second."""
WHOLE = 255


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMap:
    """A picture of all layers between two tokens; arrays are uint8 [layers, blocks]."""

    layers: int
    blocks: int
    neurons: int
    """Of a layer: a block is that of `neurons // blocks`, about."""
    states: Shares
    """ABSENT, RESIDENT, HIT or LOADED: the last of them that holds for a neuron of the block."""
    resident: Shares
    """Share of a block's neurons that are in DRAM, 255 being all; so are the next two."""
    hit: Shares
    """That the last token used and found in DRAM."""
    loaded: Shares
    """That the last token used and read from flash."""

    @classmethod
    def of(
        cls, marks: Sequence[tuple[Mask, Mask, Mask]], blocks_most: int = BLOCKS_MOST
    ) -> NeuronMap:
        """From which neurons [n] of each layer are resident, were hit, and were loaded."""
        import numpy as np

        neurons = len(marks[0][0])
        blocks = min(neurons, blocks_most)
        resident, hit, loaded = (
            np.stack([_shares(layer[kind], blocks) for layer in marks]) for kind in range(3)
        )
        states = np.where(resident > 0, RESIDENT, ABSENT).astype(np.uint8)
        states[hit > 0] = HIT
        states[loaded > 0] = LOADED
        return cls(len(marks), blocks, neurons, states, resident, hit, loaded)


def _shares(mask: Mask, blocks: int) -> Shares:
    """The part of each block that is marked; a single neuron is never rounded away."""
    import numpy as np

    edges = np.linspace(0, len(mask), blocks + 1).astype(np.intp)
    counts = np.add.reduceat(mask.astype(np.int64), edges[:-1])
    return np.ceil(counts * WHOLE / np.diff(edges)).astype(np.uint8)
