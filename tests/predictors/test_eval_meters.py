"""The meters of eval on random activity, each against counting by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flashllm.predictors.evaluation.friends import (
    COUNT_BYTES_MAX,
    NEURONS_MIN,
    RANKS,
    USES_MIN,
    FriendMeter,
    sample_size,
)
from flashllm.predictors.evaluation.likelihood import DensePassage, LikelihoodMeter
from flashllm.predictors.evaluation.lines import evenly
from flashllm.predictors.evaluation.outcomes import Outcome, standard_error, summarize
from flashllm.predictors.evaluation.selection import MarginHistogram, SelectionMeter
from flashllm.predictors.evaluation.windows import WINDOW_MAX, WindowMeter, windows_json

NEURONS = 50


def random_uses(seed, tokens=300):
    """Sets that neighbours share a part of, and now and then an empty one."""
    generator = np.random.default_rng(seed)
    chances = generator.beta(0.3, 2.0, NEURONS)
    uses, last = [], np.zeros(NEURONS, bool)
    for _ in range(tokens):
        fresh = generator.random(NEURONS) < chances
        last = np.where(generator.random(NEURONS) < 0.5, fresh, last)
        uses.append(np.flatnonzero(last if generator.random() > 0.02 else last & False))
    return [ids.astype(np.int32) for ids in uses]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("skipped", [0, 7])
def test_windows_are_unions(seed, skipped):
    uses = random_uses(seed)
    counted = np.ones(len(uses), bool)
    counted[:skipped] = False
    counted[100:120] = False
    meter = WindowMeter(NEURONS)
    for start in range(0, len(uses), 64):
        meter.add_all(uses[start : start + 64], counted[start : start + 64])
    sets = [set(ids.tolist()) for ids in uses]
    for k in (1, 2, 5, 10, WINDOW_MAX):
        sizes, loads = [], []
        for t in np.flatnonzero(counted):
            sizes.append(len(set().union(*sets[max(0, t - k + 1) : t + 1])))
            loads.append(len(sets[t] - set().union(*sets[max(0, t - k) : t])))
        assert meter.s_agg[k - 1] == pytest.approx(np.mean(sizes))
        assert meter.loads[k - 1] == pytest.approx(np.mean(loads))
        assert meter.slots_needed[k - 1] == max(sizes)
    assert meter.gaps.sum() == sum(len(s) for s, c in zip(sets, counted, strict=True) if c)


def test_loads_are_increments_of_what_is_held():
    meter = WindowMeter(NEURONS)
    uses = random_uses(9, 4_000)
    meter.add_all(uses, np.ones(len(uses), bool))
    filling = meter.s_agg[-1] / len(uses)  # what the first tokens found empty
    np.testing.assert_allclose(np.diff(meter.s_agg), meter.loads[:-1], atol=2 * filling)
    assert (np.diff(meter.loads) <= 0).all()


def test_bytes_are_loads_times_the_stride():
    meters = [WindowMeter(NEURONS) for _ in range(2)]
    for seed, meter in enumerate(meters):
        uses = random_uses(seed)
        meter.add_all(uses, np.ones(len(uses), bool))
    found = windows_json(meters, NEURONS, 4096)
    assert len(found["bytes_per_token"]) == len(found["s_agg"][0]) == WINDOW_MAX
    total = sum(meter.loads[4] for meter in meters)
    assert found["bytes_per_token"][4] == pytest.approx(4096 * total)
    assert found["mean_share_loaded"][4] == pytest.approx(total / 2 / NEURONS)


def test_friends_by_counting_pairs():
    generator = np.random.default_rng(3)
    active = generator.random((400, NEURONS)) < generator.beta(0.5, 1.5, NEURONS)
    active[:, 7] = True  # everybody's closest friend
    meter = FriendMeter(NEURONS, 20, (0, 0))
    for start in range(0, 400, 90):
        meter.add(active[start : start + 90])
    shares: dict[int, list[float]] = {rank: [] for rank in RANKS}
    closest = []
    for neuron in meter.sample:
        own = int(active[:, neuron].sum())
        if own < USES_MIN:
            continue
        pairs = [
            (-int((active[:, neuron] & active[:, other]).sum()), other)
            for other in range(NEURONS)
            if other != neuron
        ]
        pairs.sort()
        closest.append(pairs[0][1])
        for rank in RANKS:
            shares[rank].append(-pairs[rank - 1][0] / own)
    report = meter.to_json()
    assert report["looked_at"] == len(closest) >= NEURONS_MIN
    for rank in RANKS:
        assert report["rank"][str(rank)]["mean"] == pytest.approx(np.mean(shares[rank]))
        assert report["rank"][str(rank)]["q50"] == pytest.approx(np.median(shares[rank]))
    assert report["closest_distinct"] == len(set(closest))
    assert report["closest_most"] == pytest.approx(closest.count(7) / len(closest))
    assert report["closest_most_id"] == 7
    assert report["closest_most_uses"] == 400


def test_a_silent_layer_has_no_friends():
    meter = FriendMeter(NEURONS, 20, (0, 0))
    meter.add(np.zeros((30, NEURONS), bool))
    report = meter.to_json()
    assert report["looked_at"] == 0
    assert report["rank"]["1"] is report["closest_most"] is None


@pytest.mark.parametrize(("layers", "neurons"), [(6, 1024), (32, 16384), (80, 28672)])
def test_counts_of_friends_are_bounded(layers, neurons):
    sample = sample_size(layers, neurons)
    assert 4 * layers * neurons * sample <= max(COUNT_BYTES_MAX, 4 * layers * neurons * 8)
    assert sample >= 8


def test_errors_of_a_selection():
    margins = np.array([[1.0, -1.0, 0.5, 0.0], [2.0, 0.25, -3.0, -1.0]], np.float32)
    chosen = np.array([[True, True, False, False], [True, False, False, True]])
    meter = SelectionMeter()
    for row in range(2):
        meter.add(margins[row : row + 1], chosen[row : row + 1])
    found = meter.to_json(has_selector=True)
    assert found["active"] == 4 / 8
    assert found["chosen"] == 4 / 8
    assert found["false_negatives"] == 2 / 4
    assert found["false_positives"] == 2 / 4
    assert found["missed_mass"] == pytest.approx(0.75 / 3.75)
    assert meter.missed_margins.to_json()["count"] == 2
    assert set(meter.to_json(has_selector=False)) == {"active"}


def test_quantiles_of_margins():
    values = np.random.default_rng(1).lognormal(-1.0, 2.0, 20_000).astype(np.float32)
    histogram = MarginHistogram()
    for part in np.array_split(values, 7):
        histogram.add(part)
    for share in (0.1, 0.5, 0.9):
        assert histogram.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.04)
    found = histogram.to_json()
    assert sum(found["counts"]) == found["count"] == len(values)
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-4)
    assert 2 ** found["lowest_log2"] <= values.min()


def test_margins_off_the_scale_are_kept():
    histogram = MarginHistogram()
    histogram.add(np.array([1e-38, 1e30], np.float32))
    assert histogram.counts.sum() == 2
    assert MarginHistogram().to_json()["quantiles"]["q50"] is None


def test_likelihood_of_two_ways(monkeypatch):
    generator = np.random.default_rng(5)
    dense = generator.normal(size=(40, 11)).astype(np.float32)
    other = dense + generator.normal(scale=0.3, size=dense.shape).astype(np.float32)
    targets = generator.integers(0, 11, 40)
    monkeypatch.setattr("flashllm.predictors.evaluation.likelihood.KEPT_BYTES_MAX", 30 * 11 * 4)
    reference, meters = DensePassage(11), (LikelihoodMeter(), LikelihoodMeter())
    for meter, logits in zip(meters, (dense, other), strict=True):
        for block, start in enumerate(range(0, 40, 16)):
            part = slice(start, start + 16)
            meter.add(logits[part], targets[part], reference, block)

    def logs(logits):
        values = logits.astype(np.float64)
        return values - np.log(np.exp(values).sum(1, keepdims=True))

    one, two = (-logs(x)[np.arange(40), targets] for x in (dense, other))
    found = meters[1].to_json()
    assert meters[0].to_json()["ratio"] == meters[0].to_json()["same_token"] == 1.0
    assert meters[0].perplexity == pytest.approx(math.exp(one.mean()), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(two.mean()), rel=1e-5)
    assert found["ratio"] == pytest.approx(math.exp((two - one).mean()), rel=1e-5)
    error = (two - one).std(ddof=1) / math.sqrt(40)
    assert found["ratio_stderr"] == pytest.approx(found["ratio"] * error, rel=1e-4)
    assert found["same_token"] == np.mean(dense.argmax(1) == other.argmax(1))
    divergence = (np.exp(logs(dense)) * (logs(dense) - logs(other))).sum(1)
    assert meters[1].divergence_tokens == 30  # of 40: as many as are kept
    assert found["divergence_nats"] == pytest.approx(divergence[:30].mean(), rel=1e-3)


def test_every_beginning_of_the_order_is_spread_evenly():
    order = evenly(1000)
    assert sorted(order) == list(range(1000))
    for taken in (5, 37, 400):
        gaps = np.diff([0, *sorted(order[:taken]), 999])
        assert gaps.max() <= 3 * 1000 / taken


def test_shares_and_their_errors():
    outcomes = []
    for number, (dense, predicted) in enumerate([(1, 1), (1, 0), (0, 0), (1, 1)]):
        outcome = Outcome("even" if number % 2 == 0 else "odd")
        outcome.add("acc", "dense", dense, bool(dense))
        outcome.add("acc", "predicted", predicted, bool(predicted))
        outcomes.append(outcome)
    report = summarize(outcomes)
    found = report["measures"]["acc"]
    assert found["dense"]["right"] == 0.75
    assert found["predicted"]["stderr"] == pytest.approx(math.sqrt(0.25 / 3))
    assert found["difference"] == -0.25
    assert found["same_answer"] == 0.75
    assert {name: group["questions"] for name, group in report["groups"].items()} == {
        "even": 2,
        "odd": 2,
    }
    assert standard_error(np.ones(1)) == 0.0
