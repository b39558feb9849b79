"""Reading ahead while nobody waits: of everything there is room for, or of a hot set of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flashllm.arrays import Ids
from flashllm.weight_cache.pool import BundlePool

HOT_AT_ONCE = 4
"""Experts of a layer that are read together ahead of need: an answer waits for no more."""


class WarmUp:
    """Fills free slots a block at a time. Any other step ends it; then it begins anew."""

    def __init__(self, pool: BundlePool, read_all: Callable[[], Iterator[float]]) -> None:
        """`read_all` reads block by block what is in no slot, and says the share of the layers."""
        self._pool = pool
        self._read_all = read_all
        self._going: Iterator[float] | None = None
        self.hot: Sequence[Ids] = ()
        """Experts of each layer that are worth reading, most valuable first."""

    def step(self) -> float:
        """Reads one more block, or some experts of a layer.

        Returns the share that was looked at, 1.0 where nothing is left to read.
        """
        if self._going is None:
            if self._pool.may_hold_more:
                self._pool.drain()
                self._going = self._read_all()
            elif self.hot:
                self._pool.drain()
                self._going = self._read_hot_set(self.hot)
            else:
                return 1.0
        try:
            share = next(self._going, 1.0)
        except BaseException:
            self.end()
            raise
        if share == 1.0:
            self.hot = ()
            self.end()
        return share

    def end(self) -> None:
        """Something else comes next."""
        if self._going is not None:
            self._going = None
            self._pool.end_expecting()

    def _read_hot_set(self, hot: Sequence[Ids]) -> Iterator[float]:
        """Reads a few experts of each layer in turn into slots that are free; yields the share."""
        longest = max(map(len, hot), default=0)
        for first in range(0, longest, HOT_AT_ONCE):
            for layer, ids in enumerate(hot):
                part = ids[first : first + HOT_AT_ONCE][: self._pool.free_slots(layer)]
                if len(part):
                    for found in self._pool.rounds(layer, np.sort(part)):
                        for _ in found.arrivals:
                            pass
                yield min((first + (layer + 1) / len(hot) * HOT_AT_ONCE) / longest, 1.0)
