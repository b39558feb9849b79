"""What is planned and what is measured, one over the other."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.plan_check import Measured, _row, _table

MEASURED = [
    Measured(0.20, 100 << 20, 0.80),
    Measured(0.25, 120 << 20, 0.70),
    Measured(0.30, 110 << 20, 0.75),
]


def planned(
    token: dict[str, float] | None, nbytes: int, first: dict[str, Any] | None = None
) -> dict[str, Any]:
    traffic = {"bytes_read": nbytes}
    expected = {"traffic": traffic, "hit_rate": 0.7, "assumed": "some", "bound": None}
    made = {"plan": {"window": 5}, "expected": expected | {"token": token}}
    return made | {"first_tokens": first}


def test_runs_are_compared_with_what_is_expected_from_empty_slots() -> None:
    token = {"total": 0.2, "flash": 0.2, "dram": 0.05, "overhead": 0.03}
    first = {"tokens": 128, "bytes_read": 99 << 20, "hit_rate": 0.6, "seconds": 0.5}
    row = _row(4 << 30, planned(token, 50 << 20, first), MEASURED)
    assert row["bytes"] == {"ratio": pytest.approx(0.9), "within": True}
    assert row["seconds"] == {"ratio": pytest.approx(2.0), "within": False}
    assert (row["expected_hit_rate"], row["expected_full_hit_rate"]) == (0.6, 0.7)


def test_times_bytes_and_hits() -> None:
    token = {"total": 0.28, "flash": 0.2, "dram": 0.05, "overhead": 0.03}
    row = _row(4 << 30, planned(token, 143 << 20), MEASURED)
    assert row["seconds"] == {"ratio": pytest.approx(0.28 / 0.25), "within": True}
    assert row["bytes"] == {"ratio": pytest.approx(1.3), "within": False}
    last = _table([row]).splitlines()[2]
    assert last == "| 4,096 | 0.28 | 0.25 (0.2 to 0.3) | 1.12 | 143 | 110 | 1.30 | 70.0% | 75.0% |"


def test_without_a_profile_times_are_not_compared() -> None:
    row = _row(4 << 30, planned(None, 110 << 20), MEASURED)
    assert "seconds" not in row
    assert row["bytes"]["within"]
    assert "no profile" in _table([row])


def test_nothing_was_read() -> None:
    nothing = [Measured(0.2, 0, 1.0)]
    assert _row(1, planned(None, 0), nothing)["bytes"] == {"ratio": 1.0, "within": True}
    assert not _row(1, planned(None, 1), nothing)["bytes"]["within"]
