"""A text computed with all neurons, with the selected ones, and with those that are not zero."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flashllm.arrays import Ids
from flashllm.engine.loading import open_decoder
from flashllm.large_arrays import Floats
from flashllm.model.active_set_selectors import ActiveSet
from flashllm.model.decoder import Decoder
from flashllm.model.layer_inputs import Reads

IDS = np.random.default_rng(3).integers(3, 96, size=120).tolist()


class SelectNothing:
    reads: Reads = "ffn"

    def select(self, layer: int, x: np.ndarray, gate: np.ndarray | None) -> ActiveSet:
        return ActiveSet(np.empty(0, dtype=np.int32))


@pytest.fixture(scope="module")
def decoder(sparse_model: Path) -> Iterator[Decoder]:
    with open_decoder(sparse_model, select="predicted") as opened:
        yield opened


def logits(decoder: Decoder, mode: str, **watchers: object) -> np.ndarray:
    return np.concatenate([b.copy() for b in decoder.logits_blocks(IDS, mode, **watchers)])


@pytest.mark.parametrize("mode", ["selected", "oracle"])
def test_exact_selectors_give_the_dense_logits(decoder: Decoder, mode: str) -> None:
    dense = logits(decoder, "dense")
    assert dense.shape == (len(IDS), 96)
    np.testing.assert_allclose(logits(decoder, mode), dense, atol=1e-4, rtol=0)
    assert np.array_equal(dense, decoder.logits(IDS))


def test_selected_and_oracle_are_the_same_bits(decoder: Decoder) -> None:
    """The predictors of this model are never wrong, and zeros add nothing."""
    assert np.array_equal(logits(decoder, "selected"), logits(decoder, "oracle"))


@pytest.mark.parametrize("mode", ["selected", "oracle"])
def test_chosen_are_the_neurons_above_zero(decoder: Decoder, mode: str) -> None:
    margins: dict[int, list[Floats]] = {}
    inputs: dict[int, list[Floats]] = {}
    chosen: dict[int, list[Ids]] = {}

    def tap(layer: int, x: Floats, margin: Floats) -> None:
        margins.setdefault(layer, []).append(margin.copy())
        inputs.setdefault(layer, []).append(x.copy())

    logits(decoder, "dense", tap=tap)
    logits(decoder, mode, chosen=lambda layer, ids: chosen.setdefault(layer, []).extend(ids))
    assert sorted(margins) == sorted(chosen) == [0, 1, 2]
    for layer, pieces in margins.items():
        dense = np.concatenate(pieces)
        assert len(chosen[layer]) == len(dense) == len(IDS)
        for x, margin, ids in zip(np.concatenate(inputs[layer]), dense, chosen[layer], strict=True):
            # Within rounding of zero the two ways of summing up may differ.
            sure = np.abs(margin) > 1e-5
            assert np.array_equal(np.isin(np.arange(320), ids)[sure], (margin > 0)[sure])
            assert np.array_equal(decoder.choose(layer, x), ids) or not sure.all()


def test_what_is_left_out_is_missing_in_the_loop(sparse_model: Path) -> None:
    with open_decoder(sparse_model, select="predicted") as decoder:
        exact = logits(decoder, "selected")
        decoder.use(SelectNothing())
        empty = logits(decoder, "selected")
        assert not np.allclose(exact, empty, atol=0.1)
        # The dense pass and the oracle do not ask the selector.
        assert np.array_equal(logits(decoder, "oracle"), exact)


def test_a_text_leaves_nothing_behind(decoder: Decoder) -> None:
    first = logits(decoder, "dense")
    logits(decoder, "selected")
    assert np.array_equal(logits(decoder, "dense"), first)
