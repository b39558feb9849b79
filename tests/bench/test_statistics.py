"""Spread and percentiles, against values worked out by hand."""

from __future__ import annotations

import pytest

from flashllm.bench.sample_statistics import Spread, percentiles, spread


def test_spread_of_samples_in_their_order() -> None:
    found = Spread.of([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.min, found.max) == (2.5, 1.0, 10.0)
    # Mean 4, squared differences 1 + 9 + 4 + 36 over n - 1.
    assert found.stdev == pytest.approx((50 / 3) ** 0.5)
    assert found.to_json()["samples"] == [3.0, 1.0, 2.0, 10.0]
    assert found.to_json()["n"] == 4


def test_spread_of_one_and_of_none() -> None:
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 0.0, (7.0,))
    assert spread([]) is None


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (1, {"p50", "p90", "p95"}),
        (99, {"p50", "p90", "p95"}),
        (100, {"p50", "p90", "p95", "p99"}),
        (999, {"p50", "p90", "p95", "p99"}),
        (1000, {"p50", "p90", "p95", "p99", "p99.9"}),
    ],
)
def test_percentiles_come_with_enough_values_only(n: int, shown: set[str]) -> None:
    found = percentiles(range(n))
    assert {name for name in found if name.startswith("p")} == shown
    assert found["n"] == n


def test_percentiles_by_hand() -> None:
    found = percentiles([float(value) for value in reversed(range(101))])
    assert {name: found[name] for name in ("min", "p50", "p90", "p99", "max")} == {
        "min": 0.0,
        "p50": 50.0,
        "p90": 90.0,
        "p99": 99.0,
        "max": 100.0,
    }
    assert percentiles([]) == {"n": 0}
