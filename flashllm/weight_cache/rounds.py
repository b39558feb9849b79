"""How the ids of a layer are cut: into blocks of summation, and rounds that fit into its slots."""

from __future__ import annotations

import numpy as np

from flashllm import core
from flashllm.arrays import Ids
from flashllm.weight_cache.blocks import BLOCK_IDS


def block_ends(ids: Ids, block_ids: int = BLOCK_IDS) -> Ids:
    """Ends of the runs of ascending `ids` that lie in the same block; the last is `len(ids)`."""
    return block_ends_of_each(ids, np.array([len(ids)], np.int32), block_ids)


def block_ends_of_each(ids: Ids, vector_ends: Ids, block_ids: int = BLOCK_IDS) -> Ids:
    """The same of the ids of several vectors, of which each ends where `vector_ends` says."""
    ends = np.empty(len(ids), np.int32)
    return ends[: core.run_ends(ids, vector_ends, block_ids, ends)]


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
