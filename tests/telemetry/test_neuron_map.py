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
    assert found.states() == (bytes([RESIDENT, HIT, LOADED, ABSENT]), bytes([ABSENT] * 4))
    assert list(found.resident[0]) == [255, 128, 128, 0]
    assert list(found.hit[0]) == [0, 128, 0, 0]
    assert list(found.loaded[0]) == [0, 0, 128, 0]


def test_neighbours_are_merged_by_their_means() -> None:
    """A tenth, and what is left over, as numpy has it."""
    random = np.random.default_rng(3)
    marks = [tuple(random.random(700) < share for share in (0.5, 0.1, 0.01)) for _ in range(7)]
    found = NeuronMap.of(marks, blocks_most=70)  # type: ignore[arg-type]
    small = found.reduced(7, 10)
    whole = np.array([list(row) for row in found.hit]).reshape(7, 10, 7)
    assert [list(row) for row in small.hit] == np.ceil(whole.mean(axis=2)).astype(int).tolist()
    few = found.reduced(3, 70)
    layers = np.array([list(row) for row in found.resident])
    expected = [layers[:2], layers[2:4], layers[4:]]
    assert [list(row) for row in few.resident] == [
        np.ceil(part.mean(axis=0)).astype(int).tolist() for part in expected
    ]
    assert (few.layers, few.blocks, few.totals) == (3, 70, found.totals)


def test_one_neuron_among_thousands_is_seen() -> None:
    found = NeuronMap.of([(mask(10_000, 9_999), mask(10_000), mask(10_000, 9_999))])
    assert found.blocks == 256
    (states,) = found.states()
    assert states[-1] == LOADED
    assert sum(state != ABSENT for state in states) == 1


def test_the_share_of_all_neurons_is_not_rounded_up() -> None:
    # One of the 112 neurons of each block: of 255 that is between 2 and 3.
    few = mask(256 * 112, *range(0, 256 * 112, 112))
    found = NeuronMap.of([(few, few, mask(256 * 112))] * 2)
    assert set(b"".join(found.hit)) == {3}
    assert found.totals == (1 / 112, 1 / 112, 0.0)
    assert found.reduced(1, 10).totals == found.totals


def test_blocks_of_unequal_size_cover_every_neuron() -> None:
    full = mask(10, *range(10))
    found = NeuronMap.of([(full, full, mask(10))], blocks_most=4)
    assert found.resident == (bytes([255] * 4),)
    assert found.states() == (bytes([HIT] * 4),)
