"""The router's choice, against a plain reference, one token after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm.model.router import routed
from flashllm.spec import MoeSpec, Score


def reference(experts: MoeSpec, logits: list[float]) -> dict[int, float]:
    """Weights by the definitions, in double precision."""
    values = np.array(logits, dtype=np.float64)
    if experts.score == "sigmoid":
        scores = 1 / (1 + np.exp(-values))
    else:
        scores = np.exp(values - values.max())
        scores /= scores.sum()
    order = sorted(range(len(logits)), key=lambda expert: (-logits[expert], expert))
    chosen = order[: experts.per_token]
    total = sum(scores[expert] for expert in chosen) if experts.renormalise else 1.0
    return {expert: float(scores[expert] / total) for expert in chosen}


LOGITS = st.lists(st.floats(-12, 12, width=32, allow_subnormal=False), min_size=6, max_size=6)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [True, False])
@given(rows=st.lists(LOGITS, min_size=1, max_size=5), count=st.integers(1, 6))
def test_weights_are_those_of_the_definitions(
    score: Score, renormalise: bool, rows: list[list[float]], count: int
) -> None:
    experts = MoeSpec(6, count, 8, score, renormalise)
    logits = np.array(rows, dtype=np.float32)
    found = routed(experts, logits)
    for row, weights in zip(rows, found, strict=True):
        wanted = reference(experts, row)
        assert np.flatnonzero(weights).tolist() == sorted(wanted)
        for expert, weight in wanted.items():
            assert weights[expert] == pytest.approx(weight, rel=1e-5)
    for number, row in enumerate(logits):
        assert np.array_equal(routed(experts, row[None])[0], found[number]), "alone as among others"


def test_the_lowest_ids_are_chosen_among_equals() -> None:
    experts = MoeSpec(8, 3, 4)
    weights = routed(experts, np.array([[1, 5, 1, 1, 5, 1, 1, 1]], dtype=np.float32))
    assert np.flatnonzero(weights[0]).tolist() == [0, 1, 4]
    weights = routed(experts, np.zeros((1, 8), dtype=np.float32))
    assert np.flatnonzero(weights[0]).tolist() == [0, 1, 2]


def test_logits_that_overflow_an_exponential() -> None:
    experts = MoeSpec(4, 2, 4, "sigmoid", renormalise=True)
    weights = routed(experts, np.array([[-200, 300, -150, 3]], dtype=np.float32))
    assert np.isfinite(weights).all()
    assert weights[0, 1] == pytest.approx(1 / (1 + 0.95257413), rel=1e-5)
