"""Thresholds and windows against the plainest way to compute them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from flashllm.predictors.targets import LOADS_PER_MISS, Prices, Targets
from flashllm.predictors.thresholds import SCORE_MAX, ScoreHistogram, choose_threshold
from flashllm.predictors.window_counter import WINDOWS, WindowCounter, WindowUse
from hypothesis import given, settings
from hypothesis import strategies as st

SCORES = st.floats(-SCORE_MAX, SCORE_MAX, width=32)
SAMPLES = st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=60)


def histogram_of(samples: list[tuple[float, bool]]) -> ScoreHistogram:
    histogram = ScoreHistogram()
    scores, active = zip(*samples, strict=True)
    for row in range(len(samples)):  # one by one: counts add up
        histogram.add(torch.tensor([[scores[row]]]), torch.tensor([[active[row]]]))
    return histogram


def shares(samples, threshold):
    """False negatives and false positives, by definition."""
    missed = [score <= threshold for score, active in samples if active]
    loaded = [score > threshold for score, active in samples if not active]
    return sum(missed) / max(1, len(missed)), sum(loaded) / max(1, len(loaded))


@settings(deadline=None, max_examples=50)
@given(SAMPLES)
def test_shares_at_every_edge_are_those_of_the_definition(samples):
    histogram = histogram_of(samples)
    misses, extras = histogram.false_negatives(), histogram.false_positives()
    for index in range(0, len(histogram.edges), 40):
        expected = shares(samples, float(histogram.edges[index]))
        assert (misses[index], extras[index]) == pytest.approx(expected)


def test_scores_beyond_the_edges_and_those_that_are_no_numbers_are_counted():
    samples = [(1e9, True), (-1e9, True), (math.inf, False), (-math.inf, True), (math.nan, True)]
    histogram = histogram_of(samples)
    assert (histogram.active.sum(), histogram.inactive.sum()) == (4, 1)
    assert histogram.misses()[[0, -1]].tolist() == [3, 3]
    assert histogram.false_loads()[[0, -1]].tolist() == [1, 1]


@settings(deadline=None, max_examples=50)
@given(SAMPLES, st.floats(0.0, 0.5))
def test_false_positives_at_a_target_are_the_fewest_that_meet_it(samples, target):
    histogram = histogram_of(samples)
    pairs = [shares(samples, float(edge)) for edge in histogram.edges[::40]]
    found = histogram.false_positives_at(target)
    assert found <= min((fp for fn, fp in pairs if fn <= target), default=1.0) + 1e-12


@settings(deadline=None, max_examples=50)
@given(
    SAMPLES,
    st.floats(0.0, 0.5),
    st.floats(0.0, 1.0),
    st.floats(1.0, 100.0),
    st.floats(0.0, 400.0),
)
def test_a_threshold_is_the_cheapest_of_all_that_meet_the_targets(
    samples, target, most, load, miss
):
    prices = Prices(false_load=load, miss=miss, dram=0.1)
    histogram = histogram_of(samples)
    threshold = choose_threshold(histogram, target, most, prices)

    def cost(edge):
        missed = sum(score <= edge for score, active in samples if active)
        return miss * missed + load * sum(score > edge for score, active in samples if not active)

    edges = [float(edge) for edge in histogram.edges]
    meeting = [edge for edge in edges if shares(samples, edge)[0] <= target] or edges[:1]
    least = shares(samples, meeting[-1])[1]
    allowed = [edge for edge in meeting if shares(samples, edge)[1] <= max(most, least)]
    assert threshold in allowed
    assert cost(threshold) <= min(map(cost, allowed)) + 1e-6


def test_dear_misses_lower_the_threshold_and_dear_loads_raise_it_to_the_target():
    generator = torch.Generator().manual_seed(0)
    active = torch.rand(2000, 50, generator=generator) < 0.05
    histogram = ScoreHistogram()
    histogram.add(torch.randn(2000, 50, generator=generator) + 3.0 * active, active)
    found = [
        choose_threshold(histogram, 0.2, 1.0, Prices(false_load=1.0, miss=miss, dram=0.1))
        for miss in (0.0, 40.0, 400.0)
    ]
    assert found[0] > found[1] > found[2]
    assert found[0] == float(histogram.edges[histogram.highest(0.2)])


def test_an_easy_layer_is_cut_closer_than_a_hard_one():
    generator = torch.Generator().manual_seed(0)
    active = torch.rand(2000, 50, generator=generator) < 0.05
    noise = torch.randn(2000, 50, generator=generator)
    prices = Prices(false_load=1.0, miss=4.0, dram=0.1)
    at = []
    for distance in (8.0, 2.5):
        histogram = ScoreHistogram()
        histogram.add(noise + distance * (active.float() - 0.5), active)
        threshold = choose_threshold(histogram, 0.04, 1.0, prices)
        edge = int(torch.searchsorted(histogram.edges, threshold))
        at.append(float(histogram.false_negatives()[edge]))
    assert at[0] < 0.001 < 0.03 < at[1] <= 0.04


def noisy(distance: float, density: float = 0.05) -> ScoreHistogram:
    """Scores of active neurons that lie so far above the others', in deviations."""
    generator = torch.Generator().manual_seed(0)
    active = torch.rand(2000, 50, generator=generator) < density
    histogram = ScoreHistogram()
    histogram.add(torch.randn(2000, 50, generator=generator) + distance * active, active)
    return histogram


def errors_at(histogram: ScoreHistogram, threshold: float) -> tuple[float, float]:
    edge = int(torch.searchsorted(histogram.edges, threshold))
    return float(histogram.false_negatives()[edge]), float(histogram.false_positives()[edge])


@pytest.mark.parametrize("held", [0.0, 0.5, 0.9])
def test_a_layer_that_can_be_predicted_is_cut_where_the_price_alone_would_cut_it(held):
    prices = Prices(false_load=1.0 - held, miss=LOADS_PER_MISS, dram=0.1)
    histogram = noisy(6.0)
    threshold = choose_threshold(histogram, 0.04, 0.03, prices)
    assert threshold == choose_threshold(histogram, 0.04, 1.0, prices)
    assert max(errors_at(histogram, threshold)) < 0.03


def test_false_positives_are_bounded_however_cheap_they_are():
    # The window holds nearly all that is read in vain.
    prices = Prices(false_load=0.001, miss=LOADS_PER_MISS, dram=0.1)
    hard, hopeless = noisy(4.0, 0.4), noisy(1.0, 0.4)
    assert errors_at(hard, choose_threshold(hard, 0.04, 1.0, prices))[1] > 0.4
    misses, extras = errors_at(hard, choose_threshold(hard, 0.04, 0.03, prices))
    assert misses < 0.03
    assert 0.02 < extras <= 0.03
    # Where both targets cannot be met, no more is read than the first one takes.
    found = choose_threshold(hopeless, 0.04, 0.03, prices)
    assert errors_at(hopeless, found)[1] == hopeless.false_positives_at(0.04) > 0.03


def test_prices_follow_from_the_windows_of_a_layer():
    # Of 100 active neurons 30 are not among those of the last five tokens; a fifth token in the
    # window takes the place of 40 neurons and saves 10.
    values = dict.fromkeys(WINDOWS, 0.0) | {1: 100.0, 4: 200.0, 5: 240.0, 6: 270.0}
    prices = Prices.of(WindowUse([0] * len(WINDOWS), list(values.values())), 16_384)
    assert prices.false_load == pytest.approx(0.3 * 16_384)
    assert prices.miss == LOADS_PER_MISS * 16_384
    assert prices.dram == pytest.approx(0.25)


def test_prices_of_a_silent_layer_are_those_of_no_window():
    silent = WindowCounter(8)
    silent.add(np.zeros((10, 1), np.uint8))
    prices = Prices.of(silent.use(), 4096)
    assert prices.false_load == 4096
    assert 0 < prices.dram < 0.1


def test_rounds_tighten_the_target():
    assert Targets(false_negatives=0.04).rounds == (0.04, 0.02, 0.01, 0.005)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 120), st.integers(1, 40), st.floats(0.0, 0.6), st.integers(0, 2**32 - 1))
def test_window_use_is_the_size_of_the_union_of_sets(tokens, d_ffn, density, seed):
    flags = np.random.default_rng(seed).random((tokens, d_ffn)) < density
    sets = [set(np.flatnonzero(row)) for row in flags]
    counter = WindowCounter(d_ffn)
    bits = np.packbits(flags, axis=1, bitorder="little")
    cuts = sorted({0, tokens, *(int(cut) % tokens for cut in (seed, seed // 7, seed // 91))})
    for start, stop in itertools.pairwise(cuts):  # the counts do not depend on the pieces
        counter.add(bits[start:stop])
    use = counter.use()
    for index, window in enumerate(WINDOWS):
        sizes = [
            len(set().union(*sets[max(0, token + 1 - window) : token + 1]))
            for token in range(tokens)
        ]
        assert use.slots_needed[index] == max(sizes)
        assert use.s_agg[index] == pytest.approx(np.mean(sizes))


def test_windows_outlast_the_pieces_that_tokens_come_in():
    flags = np.random.default_rng(0).random((200, 61)) < 0.02
    bits = np.packbits(flags, axis=1, bitorder="little")
    whole, single = WindowCounter(61), WindowCounter(61)
    whole.add(bits)
    for row in bits:
        single.add(row[None])
    assert single.use() == whole.use()


def test_loads_are_the_increments_of_the_aggregate_use():
    counter = WindowCounter(3)
    # The neuron of token 0 comes back at tokens 5 and 11.
    counter.add(np.array([1, 2, 4, 2, 4, 1, 2, 4, 2, 4, 2, 1], np.uint8)[:, None])
    sets = [{0}, {1}, {2}, {1}, {2}, {0}, {1}, {2}, {1}, {2}, {1}, {0}]
    s_agg = [np.mean([len(set().union(*sets[max(0, t - k + 1) : t + 1])) for t in range(12)])
             for k in (5, 6)]  # fmt: skip
    assert counter.use().mean_loads(5) == pytest.approx(s_agg[1] - s_agg[0])
