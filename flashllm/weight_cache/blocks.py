"""Blocks of summation, and a layer cut into rounds that fit into its slots."""

from __future__ import annotations

import numpy as np

from flashllm.arrays import Ids

BLOCK_IDS = 64
"""Ids of a block of summation. Partial sums are taken over fixed blocks of ids and added in
order, so a sum does not depend on what was resident or on how a layer was cut into passes."""


def smallest_slots(n_bundles: int) -> int:
    """Slots that a layer needs at least: one block's bundles."""
    return min(BLOCK_IDS, n_bundles)


def block_ends(ids: Ids) -> Ids:
    """Ends of the runs of ascending `ids` that lie in the same block; the last is `len(ids)`."""
    inner = np.flatnonzero(np.diff(ids // BLOCK_IDS)) + 1
    return np.append(inner, len(ids)).astype(np.int32)


def passes(ids: Ids, n_slots: int) -> list[Ids]:
    """Ascending `ids`, cut at blocks so that each piece fits into `n_slots`."""
    if len(ids) <= n_slots:
        return [ids]
    pieces, start, end = [], 0, 0
    for block_end in block_ends(ids).tolist():
        if block_end - start > n_slots:
            pieces.append(ids[start:end])
            start = end
        end = block_end
    pieces.append(ids[start:end])
    return pieces
