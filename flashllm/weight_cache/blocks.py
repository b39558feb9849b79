"""Blocks of summation, and how a layer is cut into rounds that fit into its slots."""

from __future__ import annotations

import numpy as np

from flashllm.arrays import Ids
from flashllm.spec import ModelSpec

BLOCK_IDS = 64
"""Ids of a block of summation. Partial sums are taken over fixed blocks of ids and added in
order, so a sum does not depend on what was resident or on how a layer was cut into rounds."""


def summation_ids(spec: ModelSpec) -> int:
    """Ids of a block of summation: 64 neurons, or one bundle of several, which is summed inside."""
    return BLOCK_IDS if spec.neurons_per_bundle == 1 else 1


def smallest_slots(n_bundles: int, block_ids: int = BLOCK_IDS) -> int:
    """The fewest slots that a layer can work with: the bundles of one block."""
    return min(block_ids, n_bundles)


def block_ends(ids: Ids, block_ids: int = BLOCK_IDS) -> Ids:
    """Ends of the runs of ascending `ids` that lie in the same block; the last is `len(ids)`."""
    inner = np.flatnonzero(np.diff(ids // block_ids)) + 1
    return np.append(inner, len(ids)).astype(np.int32)


def split_rounds(ids: Ids, n_slots: int, block_ids: int = BLOCK_IDS) -> list[Ids]:
    """Ascending `ids`, cut at blocks so that each piece fits into `n_slots`."""
    if len(ids) <= n_slots:
        return [ids]
    pieces, start, end = [], 0, 0
    for block_end in block_ends(ids, block_ids).tolist():
        if block_end - start > n_slots:
            pieces.append(ids[start:end])
            start = end
        end = block_end
    pieces.append(ids[start:end])
    return pieces
