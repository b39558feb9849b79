"""An active set's weights: what each bundle's output counts, alone and among other tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm.engine.loading import open_decoder
from flashllm.model.active_set_selectors import ActiveSet, Selector
from flashllm.model.decoder import Decoder
from flashllm.model.layer_inputs import Reads

IDS = [5, 17, 40, 8, 61, 33]


class Weighted:
    """Names what another selector names, each with a weight."""

    reads: Reads = "ffn"

    def __init__(self, selector: Selector, weight: float) -> None:
        self._selector, self._weight = selector, weight

    def select(self, layer: int, x: Any, gate: Any) -> ActiveSet:
        ids = self._selector.select(layer, x, gate).ids
        # Not all the same: an id in the wrong place would show.
        return ActiveSet(ids, np.float32(self._weight) * np.where(ids % 2, 1, 2).astype(np.float32))


@pytest.fixture
def decoder(sparse_model: Path) -> Iterator[Decoder]:
    with open_decoder(sparse_model, select="predicted", kv_dtype="f32") as opened:
        yield opened


def by_tokens(decoder: Decoder) -> np.ndarray:
    """Logits after each token, through the decode path."""
    decoder.truncate(0)
    return np.stack([decoder.decode(token) for token in IDS])


def at_once(decoder: Decoder) -> np.ndarray:
    return np.concatenate([b.copy() for b in decoder.logits_blocks(IDS, "selected")])


def test_weights_of_one_change_nothing(decoder: Decoder) -> None:
    selector = decoder.selector
    assert selector is not None
    expected = by_tokens(decoder)

    class Ones(Weighted):
        def select(self, layer: int, x: Any, gate: Any) -> ActiveSet:
            ids = self._selector.select(layer, x, gate).ids
            return ActiveSet(ids, np.ones(len(ids), np.float32))

    decoder.use(Ones(selector, 1))
    assert np.array_equal(by_tokens(decoder), expected)


def test_weights_count_in_both_paths(decoder: Decoder) -> None:
    selector = decoder.selector
    assert selector is not None
    plain = by_tokens(decoder)
    decoder.use(Weighted(selector, 0.5))
    weighted = by_tokens(decoder)
    assert not np.allclose(weighted, plain, rtol=1e-3)
    np.testing.assert_allclose(at_once(decoder), weighted, rtol=2e-4, atol=2e-5)
