"""Blocks of summation: how many ids they have, and the slots that they take at the least."""

from __future__ import annotations

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
