"""The choice of tokens: computed by hand, and the figures of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flashllm.dtypes import row_bytes
from flashllm.kv_cache.layout import column_count, tokens_max
from flashllm.kv_cache.partial_index import choose_columns, query_sizes
from flashllm.kv_cache.recall_control import ALPHA_MAX, ALPHA_MIN, RecallControl, recall_of
from flashllm.kv_cache.speculative_fetch import (
    SpeculativeFetch,
    below_best,
    best_positions,
    fetch_count,
)


def test_a_choice_by_hand() -> None:
    """Four heads in two groups, five tokens, alpha of 4."""
    scores = np.array(
        [
            [10.0, 7.0, 6.0, 5.9, 0.0],  # below the best: 0, 3, 4, 4.1, 10
            [1.0, 2.0, 5.0, 0.0, 1.5],  # 4, 3, 0, 5, 3.5
            [-3.0, -3.0, -9.0, -9.0, -9.0],  # 0, 0, 6, 6, 6
            [0.0, -5.0, -6.0, -1.0, -7.0],  # 0, 5, 6, 1, 7
        ],
        np.float32,
    )
    distances = below_best(scores, 2)
    np.testing.assert_allclose(distances, [[0, -3, 0, -4.1, -3.5], [0, 0, -6, -1, -6]], atol=1e-5)
    # Within 4: tokens 0, 1, 2 and 4 of the first pair, 0, 1 and 3 of the second: 3.5 a head.
    assert fetch_count(distances, 4.0, 5) == 3
    assert fetch_count(distances, 4.0, 2) == 2
    # Exactly alpha below the best is too far; the best itself never is.
    assert fetch_count(below_best(scores[:1], 1), 4.0, 5) == 2
    assert fetch_count(below_best(scores[:1], 1), 0.0, 5) == 1
    assert best_positions(distances, 3).tolist() == [[0, 1, 2], [0, 1, 3]]
    assert best_positions(distances, 1).tolist() == [[0], [0]]
    assert best_positions(distances, 5).tolist() == [[0, 1, 2, 3, 4]] * 2


class GivenScores:
    """An index whose estimates are the queries themselves: [heads, tokens]."""

    def scores(self, layer: int, queries: np.ndarray, tokens: int, scale: float) -> np.ndarray:
        return scale * queries[:, :tokens]


def scored(tokens: int, heads: dict[int, dict[int, float]]) -> np.ndarray:
    """Scores of two heads that are -9 but for those given."""
    scores = np.full((2, tokens), -9.0, np.float32)
    for head, given in heads.items():
        scores[head, list(given)] = list(given.values())
    return scores


@pytest.mark.parametrize("corrects", [True, False])
def test_what_the_guess_missed_comes_late(corrects: bool) -> None:
    """Two key heads, 100 tokens, at most 10 of them, alpha of 4."""
    control = RecallControl(1, 4.0, None)
    index = GivenScores()
    fetch = SpeculativeFetch(index, (0,), 2, control, 0.1, corrects=corrects)  # type: ignore[arg-type]
    guess = scored(100, {0: {3: 5.0, 8: 4.0}, 1: {5: 1.0, 6: 0.5}})
    own = scored(100, {0: {3: 5.0, 70: 4.5}, 1: {5: 1.0, 6: 0.5}})
    assert fetch.speculate(0, guess, 100, 1.0).tolist() == [[3, 8], [5, 6]]  # type: ignore[union-attr]
    ahead, late = fetch.choose(0, own, 100, 1.0)
    assert ahead is not None
    assert ahead.tolist() == [[3, 8], [5, 6]]
    if not corrects:
        assert late is None
        return
    # One head misses 70, the other nothing: half a token a head, rounded up; the first of equals.
    assert late is not None
    assert late.tolist() == [[70], [0]]
    # A guess right away leaves nothing to be found, and a guess far off gets no more than half.
    fetch.speculate(0, own, 100, 1.0)
    assert fetch.choose(0, own, 100, 1.0)[1] is None
    everyone = np.zeros((2, 100), np.float32)
    ahead = fetch.speculate(0, everyone, 100, 1.0)
    assert ahead is not None
    assert ahead.tolist() == [[0, 1, 2, 3, 4]] * 2
    late = fetch.choose(0, everyone, 100, 1.0)[1]
    assert late is not None
    assert late.tolist() == [[5, 6, 7, 8, 9]] * 2
    # Tokens that gave way in a pool are not found late either.
    held = np.ones((2, 100), np.bool_)
    held[:, 70] = False
    fetch.speculate(0, guess, 100, 1.0, held)
    assert fetch.choose(0, own, 100, 1.0, held)[1] is None


def test_positions_are_those_of_a_stable_sort() -> None:
    distances = np.random.default_rng(1).integers(-9, 1, (3, 200)).astype(np.float32)
    for count in (1, 7, 90, 200):
        order = np.argsort(-distances, axis=1, kind="stable")[:, :count]
        assert np.array_equal(best_positions(distances, count), np.sort(order))


def test_columns_by_hand() -> None:
    """Two query heads share the key."""
    queries = np.array([[[2, -5, 0, 0], [-4, 5, 0, 0]]], np.float32)
    keys = np.array([[1, 0, -3, 4]], np.float32)
    sizes = query_sizes(queries)
    assert sizes.tolist() == [[3, 5, 0, 0]]
    # 4, 5, 3 and 4; the first of equals.
    assert choose_columns(sizes, keys, 1).tolist() == [1]
    assert choose_columns(sizes, keys, 2).tolist() == [0, 1]
    assert choose_columns(sizes, keys, 3).tolist() == [0, 1, 3]


def test_figures_of_the_paper() -> None:
    """Section 2 of the restatement: what can be computed again is what the paper says."""
    # The cap of 20 % (H2O's budget at 2,048 tokens is 409 of the total, not 384 of the input).
    assert [tokens_max(n, 0.2) for n in (512, 1024, 1536, 2048)] == [102, 204, 307, 409]
    assert tokens_max(1920, 0.2) == 384
    assert tokens_max(3, 0.2) == 1
    assert column_count(0.3, 128) == 38
    # e^alpha: a token further below has less than this share of the best one's weight.
    assert math.exp(5) == pytest.approx(148.4, abs=0.05)
    assert math.exp(4) == pytest.approx(54.6, abs=0.05)
    shares = [37 / 512, 60 / 1024, 66 / 1536, 73 / 2048]
    assert [round(100 * share, 1) for share in shares] == [7.2, 5.9, 4.3, 3.6]
    # Keys and values of OPT-30B, 16 sequences of 2,048 tokens in f16.
    assert pytest.approx(42.0, abs=0.01) == 4 * 16 * 48 * 7168 * 2048 / 2**30
    # The partial key of a token, as a share of its key and value: 15 % in f16, and far less here.
    width = 128
    in_f16 = 2 * round(0.3 * width) / (2 * 2 * width)
    assert in_f16 == pytest.approx(0.15, abs=0.002)
    in_int4 = row_bytes("int4", column_count(0.25, width)) / (2 * 2 * width)
    assert in_int4 == pytest.approx(0.035, abs=1e-3)
    # Partial query weights: 0.3 D^2 of the 12 D^2 of a layer.
    assert pytest.approx(0.025) == 0.3 / 12


def test_recall_by_hand() -> None:
    scores = np.log(np.array([[1.0, 2, 3, 4], [4, 4, 0.5, 1.5]], np.float32))
    # 2 + 4 of 10, and 4 + 1.5 of 10.
    assert recall_of(scores, np.array([1], np.int32)) == pytest.approx((0.6 + 0.55) / 2)
    assert recall_of(scores, np.array([0, 1, 2], np.int32)) == pytest.approx(1)


@pytest.mark.parametrize("spread", [1.5, 4.0])
def test_alpha_is_steered_to_the_recall_wanted(spread: float) -> None:
    """Keys that are nearly alike need a large alpha, keys far apart a small one.

    The mean of all tokens is as wanted, with those during which alpha was far too small.
    """
    generator = np.random.default_rng(7)
    control = RecallControl(2, 0.5, 0.9)
    found = []
    for token in range(400):
        scores = generator.normal(0, spread, (2, 300)).astype(np.float32)
        distances = below_best(scores[:, :-1], 1)
        count = fetch_count(distances, control.alpha(1), 299)
        found.append(recall_of(scores, best_positions(distances, count)[0]))
        control.learn(1, token, found[-1])
    assert found[0] < 0.5
    assert np.mean(found) == pytest.approx(0.9, abs=0.002)
    assert np.mean(found[200:]) == pytest.approx(0.9, abs=0.01)
    assert ALPHA_MIN <= control.alpha(1) <= ALPHA_MAX
    assert control.alpha(0) == 0.5


def test_what_tokens_taught_goes_with_them() -> None:
    control = RecallControl(3, 4.0, 0.95)
    alphas = []
    for token in range(10):
        alphas.append([control.alpha(layer) for layer in range(3)])
        control.learn(token % 3, token, 0.8 + 0.02 * token)
    control.truncate(4)
    assert [control.alpha(layer) for layer in range(3)] == alphas[4]
    # A token that was given up half way is learnt of anew.
    control.learn(1, 4, 0.5)
    control.learn(1, 4, 0.88)
    assert [control.alpha(layer) for layer in range(3)] == alphas[5]
    fixed = RecallControl(1, 3.0, None)
    fixed.learn(0, 0, 0.1)
    assert fixed.alpha(0) == 3.0
