"""What choices rest on: sums by their definition, and the order that must hold in any model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashllm.bench.kv.runs import KvPassage
from flashllm.bench.similarity.measure import measure, tables
from flashllm.bench.similarity.observing_cache import ESTIMATES, tokens_needed
from flashllm.bench.similarity.streams import SOURCES, StreamMeter
from flashllm.engine.loading import load_decoder
from flashllm.options import KvSelection

IDS = np.random.default_rng(8).integers(3, 96, 130).tolist()


def test_tokens_that_have_nine_tenths_by_hand() -> None:
    weights = np.array([[0.5, 0.05, 0.45], [0.1, 0.8, 0.1], [0.02, 0.02, 0.96]], np.float32)
    assert tokens_needed(weights).tolist() == [2, 2, 1]


def test_cosines_by_hand() -> None:
    meter = StreamMeter(2)
    came, behind, left = (np.array([one], np.float32) for one in ([1.0, 0], [1.0, 1], [1.0, 2]))
    meter(0, came, behind, left)
    meter(1, left, left, left)
    cosines = [1 / 5**0.5, 2 / 5**0.5, 2 / 5**0.5, 3 / 10**0.5]
    assert meter.means(1) == pytest.approx(dict(zip(SOURCES, cosines, strict=True)))


def test_the_text_is_decoded_as_ever_and_the_best_choice_is_the_best(sparse_model: Path) -> None:
    selection = KvSelection("infinigen", start_layer=1)
    decoder, _, store = load_decoder(sparse_model, contexts=2, kv_policy="specache")
    with store:
        plain = decoder.new_context(decoder.new_keys_values(KvSelection()))
        decoder.prefill(IDS[:100], context=plain)
        expected = [decoder.decode(token, plain) for token in IDS[100:]]
        plain.close()
        del plain
        seen: list[np.ndarray] = []
        decode = decoder.decode
        decoder.decode = lambda *own: seen.append(decode(*own))  # type: ignore[method-assign, assignment]
        rows = measure(decoder, [KvPassage(IDS, 100)], selection)
    assert np.array_equal(seen, expected)
    assert [row["layer"] for row in rows] == [1, 2]
    for row in rows:
        assert row["cosines"]["stream behind attention"] > row["cosines"]["attention before"]
        best, *others = (row["recall"][name] for name in ESTIMATES)
        for share, recall in best.items():
            assert all(other[share] <= recall + 1e-6 for other in others)
        assert best["5%"] < best["10%"] < best["20%"] <= 1
        assert sum(row["tokens_needed_histogram"].values()) == 30 * decoder.spec.n_heads
        assert all(0 < cosine <= 1 for cosine in row["weights_cosine"].values())
    assert "guess, part, index" in tables(rows)
