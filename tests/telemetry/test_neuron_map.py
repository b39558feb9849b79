"""Blocks of neurons by hand: shares, states, and nothing rounded away."""

from __future__ import annotations

import numpy as np

from flashllm.telemetry.neuron_map import ABSENT, HIT, LOADED, RESIDENT, NeuronMap


def mask(size: int, *ids: int) -> np.ndarray:
    found = np.zeros(size, dtype=np.bool_)
    found[list(ids)] = True
    return found


def test_states_and_shares_by_hand() -> None:
    layer = (mask(8, 0, 1, 2, 4), mask(8, 2), mask(8, 4))
    found = NeuronMap.of([layer, (mask(8), mask(8), mask(8))], blocks_most=4)
    assert (found.layers, found.blocks, found.neurons) == (2, 4, 8)
    assert found.states.tolist() == [[RESIDENT, HIT, LOADED, ABSENT], [ABSENT] * 4]
    assert found.resident.tolist()[0] == [255, 128, 128, 0]
    assert found.hit.tolist()[0] == [0, 128, 0, 0]
    assert found.loaded.tolist()[0] == [0, 0, 128, 0]
    assert {values.dtype for values in (found.states, found.resident, found.hit)} == {
        np.dtype(np.uint8)
    }


def test_one_neuron_among_thousands_is_seen() -> None:
    found = NeuronMap.of([(mask(10_000, 9_999), mask(10_000), mask(10_000, 9_999))])
    assert found.blocks == 256
    assert found.states[0, -1] == LOADED
    assert np.count_nonzero(found.states) == 1


def test_the_share_of_all_neurons_is_not_rounded_up() -> None:
    # One of the 112 neurons of each block: of 255 that is between 2 and 3.
    few = mask(256 * 112, *range(0, 256 * 112, 112))
    found = NeuronMap.of([(few, few, mask(256 * 112))] * 2)
    assert set(found.hit.flat) == {3}
    assert found.totals == (1 / 112, 1 / 112, 0.0)
    assert found.reduced(1, 10).totals == found.totals


def test_blocks_of_unequal_size_cover_every_neuron() -> None:
    full = mask(10, *range(10))
    found = NeuronMap.of([(full, full, mask(10))], blocks_most=4)
    assert found.resident.tolist() == [[255] * 4]
    assert found.states.tolist() == [[HIT] * 4]
