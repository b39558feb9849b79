"""Cutting an active set: pieces fit, and never split a block of summation."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashllm.weight_cache.blocks import BLOCK_IDS
from flashllm.weight_cache.rounds import block_ends, split_rounds

id_sets = st.sets(st.integers(0, 1000), max_size=400).map(
    lambda ids: np.array(sorted(ids), dtype=np.int32)
)


@given(id_sets, st.integers(BLOCK_IDS, 500))
def test_pieces_fit_and_keep_blocks_whole(ids: np.ndarray, n_slots: int) -> None:
    pieces = split_rounds(ids, n_slots)
    assert np.concatenate(pieces).tolist() == ids.tolist()
    assert all(len(piece) <= n_slots for piece in pieces)
    blocks = [set((piece // BLOCK_IDS).tolist()) for piece in pieces]
    for earlier, later in itertools.pairwise(blocks):
        assert not earlier & later


@given(id_sets)
def test_block_ends_bound_runs_of_one_block(ids: np.ndarray) -> None:
    ends = block_ends(ids).tolist()
    assert ends[-1:] == [len(ids)][: len(ids)]
    start = 0
    for end in ends:
        assert len(set((ids[start:end] // BLOCK_IDS).tolist())) <= 1
        start = end
    assert len(ends) == len(set((ids // BLOCK_IDS).tolist()))
