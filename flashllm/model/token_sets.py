"""The active sets of several tokens, block by block of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Ids
from flashllm.model.active_set_selectors import ActiveSet
from flashllm.weight_cache.rounds import block_ends_of_each


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """The ids of several tokens within one block: token after token, ascending within each."""

    ids: Ids
    ends: Ids
    """Of each token's ids, [tokens]."""
    weights: NDArray[np.float32] | None = None
    """Of each id; None: each counts once."""

    @classmethod
    def everything(cls, ids: Ids, tokens: int) -> BlockSlice:
        """All of these ids for each token."""
        numbers = np.arange(tokens, dtype=np.int32)
        return cls(np.tile(ids, tokens), (numbers + 1) * np.int32(len(ids)))

    @property
    def tokens(self) -> Ids:
        """Of each id."""
        numbers = np.arange(len(self.ends), dtype=np.int32)
        return np.repeat(numbers, np.diff(self.ends, prepend=np.int32(0)))

    def block_ends(self) -> Ids:
        """Ends of the runs that are summed separately."""
        return block_ends_of_each(self.ids, self.ends)

    def where(self, wanted: NDArray[np.bool_]) -> BlockSlice:
        """The ids for which `wanted` is true."""
        tokens = self.tokens[wanted]
        weights = None if self.weights is None else self.weights[wanted]
        return BlockSlice(self.ids[wanted], _ends(tokens, len(self.ends)), weights)


class TokenSets:
    """The active ids of each token in a layer, ascending."""

    def __init__(self, of_each: Sequence[ActiveSet]) -> None:
        counts = [len(active.ids) for active in of_each]
        ids = np.concatenate([active.ids for active in of_each])
        tokens = np.repeat(np.arange(len(of_each), dtype=np.int32), counts)
        order = np.argsort(ids, kind="stable")
        self._ids, self._tokens, self._count = ids[order], tokens[order], len(of_each)
        weights = [active.weights for active in of_each if active.weights is not None]
        assert len(weights) in (0, len(of_each)), "one selector names all of them"
        self._weights = np.concatenate(weights)[order] if weights else None

    def within(self, first: int, last: int) -> BlockSlice:
        """The ids from `first` to `last` - 1."""
        begin, end = np.searchsorted(self._ids, (first, last))
        tokens = self._tokens[begin:end]
        order = np.argsort(tokens, kind="stable")
        tokens = tokens[order]
        weights = None if self._weights is None else self._weights[begin:end][order]
        return BlockSlice(self._ids[begin:end][order], _ends(tokens, self._count), weights)


def of_each(shares: Sequence[BlockSlice]) -> list[Ids]:
    """The ids of each token in all slices of a layer, which follow each other."""
    pieces = [np.split(part.ids, part.ends[:-1]) for part in shares]
    return [np.concatenate(of_token) for of_token in zip(*pieces, strict=True)]


def _ends(tokens: Ids, count: int) -> Ids:
    return np.cumsum(np.bincount(tokens, minlength=count)).astype(np.int32)
