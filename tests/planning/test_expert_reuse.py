"""The assumed reuse of experts, against what was counted in published routing."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from flashllm.convert.families.known_shapes import describe_shape

from flashllm.bench.cache.replay import misses
from flashllm.planning.activation_stats import ASSUMED_WINDOWS, Activity, FirstTokens, assumed
from flashllm.planning.expert_reuse import reuse_growth
from flashllm.spec import ModelSpec
from flashllm.weight_cache.policies import make_policy

LAYERS, EXPERTS, USED, TOKENS = 2, 48, 4, 600


def shape(per_token: int, n_experts: int, n_layers: int) -> ModelSpec:
    spec: ModelSpec = describe_shape("qwen3-30b-a3b")
    assert spec.experts is not None
    experts = replace(spec.experts, per_token=per_token, n_experts=n_experts)
    neurons = n_experts * experts.d_ffn
    return replace(spec, experts=experts, n_layers=n_layers, d_ffn=neurons)


# Distinct experts of tokens in a row over those of one, as counted in the two recordings.
@pytest.mark.parametrize(
    ("per_token", "n_layers", "counted"),
    [
        (6, 48, {2: 1.62, 5: 2.98, 16: 5.58, 64: 8.45}),
        (3, 48, {2: 1.72, 5: 3.40, 16: 7.12, 32: 9.68}),
        (2, 36, {2: 1.82, 5: 3.62, 16: 7.87}),
        (6, 3, {2: 1.82, 5: 3.92, 16: 8.40, 32: 10.87}),
    ],
    ids=["Qwen3-30B-A3B", "its first 3", "gpt-oss-120b", "the first layers of Qwen3-30B-A3B"],
)
def test_what_was_recorded_is_assumed(
    per_token: int, n_layers: int, counted: dict[int, float]
) -> None:
    activity = assumed(shape(per_token, 128, n_layers), "router")
    for window, growth in counted.items():
        mean = np.mean(activity.s_agg[ASSUMED_WINDOWS.index(window)]) / per_token
        assert mean == pytest.approx(growth, rel=0.12)


@pytest.mark.parametrize(("per_token", "n_experts"), [(8, 128), (4, 32), (2, 8), (10, 512)])
def test_longer_windows_use_no_fewer_experts_and_no_more_than_there_are(
    per_token: int, n_experts: int
) -> None:
    activity = assumed(shape(per_token, n_experts, 5), "router")
    assert activity.s_agg[0] == activity.slots_needed[0] == (per_token,) * 5
    for few, many in itertools.pairwise(activity.s_agg):
        assert all(a <= b <= n_experts for a, b in zip(few, many, strict=True))


def test_layers_differ_as_recorded_ones_do() -> None:
    growths = np.log([reuse_growth(5, 6, 128, layer) for layer in range(20, 84)])
    assert growths.std() / growths.mean() == pytest.approx(0.12, abs=0.01)
    few = [reuse_growth(5, 4, 32, layer) for layer in (7, 31)]
    assert few == [reuse_growth(5, 6, 128, layer) for layer in (7, 31)], "no sooner than recorded"
    assert reuse_growth(5, 8, 128, 7) < reuse_growth(5, 6, 128, 7)


@functools.cache
def routing() -> np.ndarray:
    """Skewed, and half of what a token uses stays for the next: [layers, tokens, used]."""
    random = np.random.default_rng(5)
    odds = 1.0 / np.arange(2, EXPERTS + 2)
    sets = np.empty((LAYERS, TOKENS, USED), np.int32)
    for layer, token in itertools.product(range(LAYERS), range(TOKENS)):
        kept = sets[layer, token - 1, ::2] if token else np.zeros(0, np.int32)
        left = odds.copy()
        left[kept] = 0
        more = random.choice(EXPERTS, USED - len(kept), replace=False, p=left / left.sum())
        sets[layer, token] = np.sort(np.concatenate([kept, more]))
    return sets


@functools.cache
def counted() -> Activity:
    windows = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    rows = [
        [
            [len(np.unique(layer[at : at + window])) for at in range(0, TOKENS - window, 3)]
            for layer in routing()
        ]
        for window in windows
    ]
    means = tuple(tuple(float(np.mean(one)) for one in row) for row in rows)
    most = tuple(tuple(max(one) for one in row) for row in rows)
    return Activity(windows, means, most, (float(USED),) * LAYERS)


@pytest.mark.parametrize("slots", [8, 24, 44])
@pytest.mark.parametrize("tokens", [16, 80])
def test_first_tokens_load_what_a_replay_from_empty_slots_does(slots: int, tokens: int) -> None:
    sets, prompt = routing(), 6
    activity = counted()
    loaded = []
    for layer in sets:
        for first in range(0, TOKENS - tokens - prompt, 40):
            some = list(layer[first : first + prompt + tokens])
            loads = misses(some, EXPERTS, slots, make_policy("lru", EXPERTS, 5))
            loaded.append(sum(loads[prompt:]) / tokens)
    start = FirstTokens(prompt, tokens)
    steady = [activity.loads_of_slots(layer, slots, EXPERTS) for layer in range(LAYERS)]
    planned = [
        activity.loads_of_first(loads, layer, EXPERTS, start) for layer, loads in enumerate(steady)
    ]
    assert np.mean(planned) == pytest.approx(np.mean(loaded), rel=0.08)
    assert all(now >= later * (1 - 1e-9) for now, later in zip(planned, steady, strict=True))


def test_with_room_for_all_each_expert_is_loaded_once() -> None:
    activity, tokens = assumed(shape(8, 128, 1), "router"), 5000
    loads = activity.loads_of_first(0.0, 0, 128, FirstTokens(0, tokens)) * tokens
    assert 120 < loads <= 128
    assert math.isclose(activity.loads_of_first(0.0, 0, 128, FirstTokens(0, 1)), 8)
