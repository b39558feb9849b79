"""How the ids of a layer are cut: into blocks of summation, and rounds that fit into its slots."""

from __future__ import annotations

import numpy as np

from flashllm.arrays import Ids
from flashllm.weight_cache.blocks import BLOCK_IDS


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
