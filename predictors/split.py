"""Splits tokens into those that train, that decide, and that only report, by whole contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TRAIN_SHARE = 0.8
TUNE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Tokens that train, that decide on ranks, stops and thresholds, and that report."""

    train: range
    tune: range
    report: range


def split_contexts(lengths: Sequence[int]) -> Split:
    """Tokens split 80, 10 and 10 % between whole contexts, each part with one at least."""
    assert len(lengths) >= 3, "read_contexts makes more"
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    last_train = _context_at(ends, TRAIN_SHARE * total, 0, len(lengths) - 3)
    last_tune = _context_at(
        ends, (TRAIN_SHARE + TUNE_SHARE) * total, last_train + 1, len(lengths) - 2
    )
    train, tune = int(ends[last_train]), int(ends[last_tune])
    return Split(range(train), range(train, tune), range(tune, total))


def contexts_of(contexts: Sequence[list[int]], tokens: range) -> list[list[int]]:
    """The contexts whose tokens a part of a split holds."""
    starts = np.cumsum([0, *map(len, contexts)])[:-1]
    return [ids for start, ids in zip(starts, contexts, strict=True) if int(start) in tokens]


def _context_at(ends: NDArray[np.int64], token: float, low: int, high: int) -> int:
    return min(max(int(np.searchsorted(ends, token)), low), high)
