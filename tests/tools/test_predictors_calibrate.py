"""Thresholds and windows against the plainest way to compute them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flashllm.predictors.activity import WINDOWS, window_use
from flashllm.predictors.calibrate import SCORE_MAX, ScoreHistogram, choose_thresholds
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


@settings(deadline=None, max_examples=50)
@given(SAMPLES, st.floats(0.0, 0.5))
def test_false_positives_at_a_target_are_the_fewest_that_meet_it(samples, target):
    histogram = histogram_of(samples)
    pairs = [shares(samples, float(edge)) for edge in histogram.edges[::40]]
    found = histogram.false_positives_at(target)
    assert found <= min((fp for fn, fp in pairs if fn <= target), default=1.0) + 1e-12


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4), st.floats(0.01, 0.2))
def test_thresholds_meet_the_target_and_no_cheaper_single_change_does(seeds, target):
    layers = [random_layer(seed) for seed in seeds]
    histograms = []
    for scores, active in layers:
        histograms.append(ScoreHistogram())
        histograms[-1].add(scores, active)
    thresholds = choose_thresholds(histograms, target)
    found = [
        (
            (scores[active] <= t).double().mean().item(),
            (scores[~active] > t).double().mean().item(),
        )
        for (scores, active), t in zip(layers, thresholds, strict=True)
    ]
    assert np.mean([fn for fn, _ in found]) <= target + 1e-9
    for histogram, (fn, fp) in zip(histograms, found, strict=True):
        assert fn <= 1.5 * target + 1e-9
        # Nothing at this layer is better on both counts.
        misses, extras = histogram.false_negatives(), histogram.false_positives()
        assert not np.any((misses < fn - 1e-9) & (extras < fp - 1e-9))


def random_layer(seed):
    generator = torch.Generator().manual_seed(seed)
    active = torch.rand(200, 20, generator=generator) < 0.1
    scores = torch.randn(200, 20, generator=generator) * 2 + 4 * active - 3
    return scores, active


def test_an_easy_layer_is_cut_closer_than_a_hard_one():
    generator = torch.Generator().manual_seed(0)
    active = torch.rand(2000, 50, generator=generator) < 0.05
    noise = torch.randn(2000, 50, generator=generator)
    histograms = []
    for distance in (8.0, 2.5):
        histograms.append(ScoreHistogram())
        histograms[-1].add(noise + distance * (active.float() - 0.5), active)
    easy, hard = choose_thresholds(histograms, 0.04)
    at = [
        float(h.false_negatives()[int(torch.searchsorted(h.edges, t))])
        for h, t in zip(histograms, (easy, hard), strict=True)
    ]
    assert at[0] < 0.001 < 0.03 < at[1] <= 0.06


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 120), st.integers(1, 40), st.floats(0.0, 0.6), st.integers(0, 2**32 - 1))
def test_window_use_is_the_size_of_the_union_of_sets(tokens, d_ffn, density, seed):
    flags = np.random.default_rng(seed).random((tokens, d_ffn)) < density
    sets = [set(np.flatnonzero(row)) for row in flags]
    use = window_use(np.packbits(flags, axis=1, bitorder="little"), d_ffn)
    for index, window in enumerate(WINDOWS):
        sizes = [
            len(set().union(*sets[max(0, token + 1 - window) : token + 1]))
            for token in range(tokens)
        ]
        assert use.slots_needed[index] == max(sizes)
        assert use.s_agg[index] == pytest.approx(np.mean(sizes))


def test_window_use_is_the_same_in_blocks_of_neurons(monkeypatch):
    flags = np.random.default_rng(0).random((90, 61)) < 0.1
    bits = np.packbits(flags, axis=1, bitorder="little")
    whole = window_use(bits, 61)
    monkeypatch.setattr("flashllm.predictors.activity.BLOCK_FLAGS", 90 * 16)
    assert window_use(bits, 61) == whole
