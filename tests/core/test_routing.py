"""Which experts a router's logits choose, in both cores, against plain Python."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def routing(**changes: Any) -> dict[str, Any]:
    return {
        "choice_bias": None, "per_token": 2, "sigmoid": False, "groups": 1, "groups_kept": 1,
        "renormalise": False, "sum_offset": 0.0, "weight_scale": 1.0,
    } | changes  # fmt: skip


def weights_of(core: Any, logits: np.ndarray, **changes: Any) -> np.ndarray:
    weights = np.full(logits.shape, 7, np.float32)
    core.expert_weights(logits, weights=weights, **routing(**changes))
    return weights


def best(values: list[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]


def expected(logits: np.ndarray, how: dict[str, Any]) -> list[float]:
    """Of one token, in f64."""
    plain = logits.tolist()
    if how["sigmoid"]:
        scores = [1 / (1 + math.exp(-one)) for one in plain]
    else:
        powers = [math.exp(one - max(plain)) for one in plain]
        scores = [one / sum(powers) for one in powers]
    bias = how["choice_bias"]
    by = plain
    if bias is not None:
        by = [np.float32(score) + one for score, one in zip(scores, bias, strict=True)]
    elif how["groups"] > 1:
        by = [np.float32(score) for score in scores]
    if how["groups"] > 1:
        size = len(plain) // how["groups"]
        sums = [
            sum(sorted(by[at : at + size])[-2:], start=np.float32(0))
            for at in range(0, len(plain), size)
        ]
        kept = best(sums, how["groups_kept"])
        by = [one if i // size in kept else -math.inf for i, one in enumerate(by)]
    chosen = best(by, how["per_token"])
    total = sum(scores[i] for i in chosen) + how["sum_offset"] if how["renormalise"] else 1.0
    return [
        scores[i] / total * how["weight_scale"] if i in chosen else 0.0 for i in range(len(plain))
    ]


# Logits that are far enough from one another, or equal: nothing hangs on a last bit.
LOGITS = st.integers(-8, 8).map(lambda at: at / 2)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_experts_are_chosen_and_weighed(core: ModuleType, data: st.DataObject) -> None:
    groups, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    experts = groups * size
    tokens = data.draw(st.integers(1, 3))
    logits = data.draw(hnp.arrays(np.float32, (tokens, experts), elements=LOGITS))
    kept = data.draw(st.integers(1, groups))
    how = routing(
        per_token=data.draw(st.integers(1, kept * size)),
        sigmoid=data.draw(st.booleans()),
        groups=groups,
        groups_kept=kept,
        renormalise=data.draw(st.booleans()),
        sum_offset=data.draw(st.sampled_from([0.0, 1e-20, 0.5])),
        weight_scale=data.draw(st.sampled_from([1.0, 2.5])),
    )
    if data.draw(st.booleans()):
        how["choice_bias"] = data.draw(
            hnp.arrays(np.float32, experts, elements=st.sampled_from([0.0, 4.0, -4.0]))
        )
    found = weights_of(core, logits, **how)
    for own, token in zip(found, logits, strict=True):
        assert np.allclose(own, expected(token, how), rtol=1e-5, atol=1e-7)
        assert np.array_equal(weights_of(core, token[None], **how)[0], own)


def test_the_lowest_ids_win_among_equals(core: ModuleType) -> None:
    logits = np.array([[1, 3, 1, 3, 3, 1]], np.float32)
    assert np.flatnonzero(weights_of(core, logits)[0]).tolist() == [1, 3]
    assert np.flatnonzero(weights_of(core, logits, per_token=4)[0]).tolist() == [0, 1, 3, 4]


def test_what_is_no_number_is_chosen_last(core: ModuleType) -> None:
    logits = np.array([[1, np.nan, 0, np.nan]], np.float32)
    by_sigmoid = weights_of(core, logits, sigmoid=True)[0]
    assert np.flatnonzero(by_sigmoid).tolist() == [0, 2]
    three = weights_of(core, logits, sigmoid=True, per_token=3)[0]
    assert np.isnan(three[1])
    assert three[3] == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"per_token": 0}, "0 experts a token"),
        ({"per_token": 7}, "7 experts a token"),
        ({"groups": 0}, "0 groups"),
        ({"groups": 4}, "4 groups"),
        ({"groups": 2, "groups_kept": 0}, "0 of 2 groups kept"),
        ({"groups": 2, "groups_kept": 3}, "3 of 2 groups kept"),
        ({"choice_bias": np.zeros(5, np.float32)}, "choice_bias has 5 values"),
        ({"weights": np.zeros((2, 5), np.float32)}, r"weights is \[2, 5\], for \[2, 6\] logits"),
        ({"weights": np.zeros((1, 6), np.float32)}, r"weights is \[1, 6\], for \[2, 6\] logits"),
    ],
)
def test_numbers_that_do_not_fit(core: ModuleType, wrong: dict[str, Any], told: str) -> None:
    logits = np.zeros((2, 6), np.float32)
    arguments = routing() | {"weights": np.zeros((2, 6), np.float32)} | wrong
    with pytest.raises(ValueError, match=told):
        core.expert_weights(logits, **arguments)
