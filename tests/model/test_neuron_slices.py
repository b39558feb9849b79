"""What tokens want of a layer's blocks, asked for some blocks at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from flashllm.model import neuron_slices
from flashllm.model.neuron_slices import WantedStrips, is_less_work
from flashllm.weight_cache.block_stream import Block


@dataclass
class Mask:
    """Active sets that are known, and how many bundles were asked for each time."""

    wanted: NDArray[np.bool_]  # [tokens, bundles]
    asked: list[int] = field(default_factory=list)

    def among(self, first: int, count: int) -> NDArray[np.bool_]:
        self.asked.append(count)
        return self.wanted[:, first : first + count].copy()


@pytest.mark.parametrize(
    ("truths", "asked"), [(1, [64, 64, 64, 8]), (3 * 150, [128, 72]), (1 << 20, [200])]
)
def test_each_block_has_its_columns(
    truths: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neuron_slices, "_STRIP_BYTES", truths)
    mask = Mask(np.random.default_rng(0).random((3, 200)) < 0.2)
    for _ in range(2):  # the next layer begins at its first block again
        strips = WantedStrips(mask, 3, 200)
        for first in range(0, 200, 64):
            count = min(64, 200 - first)
            block = Block.of(first, np.empty((count, 1), np.uint8))
            assert np.array_equal(strips(block), mask.wanted[:, first : first + count])
            # Asked again, as tiles ask for what they leave out.
            assert np.array_equal(strips(block), mask.wanted[:, first : first + count])
    assert mask.asked == asked * 2


def test_few_of_all_are_less_work() -> None:
    wanted = np.zeros((8, 100), dtype=np.bool_)
    wanted[:, :10] = True
    assert is_less_work(wanted)
    wanted[:, :40] = True
    assert not is_less_work(wanted)
