"""The active sets of a run, recorded, and what a window over them must hold and load.

Computed without the slot pool, whose counts are compared with this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashllm.arrays import Ids
from flashllm.model.active_set_selectors import ActiveMask, ActiveSet, Selector, Vector
from flashllm.model.layer_inputs import Reads


class RecordingSelector:
    """Wraps a selector and records what it selects: `sets[layer][token]`."""

    def __init__(self, selector: Selector, n_layers: int) -> None:
        self._selector = selector
        self.sets: list[list[Ids]] = [[] for _ in range(n_layers)]

    @property
    def reads(self) -> Reads:
        """As in the wrapped selector."""
        return self._selector.reads

    def select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:
        """The wrapped selector's active set."""
        active = self._selector.select(layer, x, gate)
        self.sets[layer].append(active.ids)
        return active

    def select_each(self, layer: int, x: Vector, gate: Vector | None) -> ActiveMask:
        """The wrapped selector's, of a prompt, which is not recorded."""
        return self._selector.select_each(layer, x, gate)


class ActiveSets:
    """Ids by layer and token; the first `skipped` tokens are not counted.

    `held` [layers]: the ids that a prompt left in the window before the first token.
    """

    def __init__(
        self, sets: Sequence[Sequence[Ids]], n_bundles: int, skipped: int, held: Sequence[Ids]
    ) -> None:
        self._sets = sets
        self._n_bundles = n_bundles
        self._skipped = skipped
        self._held = held

    def loads(self, window: int) -> float:
        """Mean bundles of all layers that a token loads with a window of `window` tokens."""
        counted = max(len(self._sets[0]) - self._skipped, 1)
        loaded = 0
        for layer in self._sets:
            for token in range(self._skipped, len(layer)):
                held = np.zeros(self._n_bundles, dtype=np.bool_)
                for ids in layer[max(token - window, 0) : token]:
                    held[ids] = True
                loaded += len(layer[token]) - int(held[layer[token]].sum())
        return loaded / counted

    def slots_needed(self, window: int) -> list[int]:
        """For each layer, the most bundles that `window` tokens use, the current one included."""
        needed = []
        for layer, prompt in zip(self._sets, self._held, strict=True):
            most = 0
            for token in range(len(layer)):
                held = np.zeros(self._n_bundles, dtype=np.bool_)
                for ids in layer[max(token - window + 1, 0) : token + 1]:
                    held[ids] = True
                if token + 1 < window:
                    held[prompt] = True
                most = max(most, int(held.sum()))
            needed.append(most)
        return needed
