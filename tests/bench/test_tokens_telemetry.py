"""What telemetry costs, from runs made by hand."""

from __future__ import annotations

import pytest

from flashllm.bench.tokens.samples import AGAIN, COLD, PLAIN, WARM
from flashllm.bench.tokens.telemetry_cost import median_interval, same_tokens, telemetry_cost
from tests.support.token_fakes import run


def test_pairs_are_of_the_same_token_of_neighbouring_runs() -> None:
    # The machine gets slower all the time; in each pair telemetry adds 2, whichever comes first.
    runs = [
        run(0, COLD, [9000, 9000, 9000]),
        run(1, WARM, [102, 202, 302]),
        run(2, PLAIN, [100, 200, 300]),
        run(3, PLAIN, [400, 500, 600]),
        run(4, WARM, [402, 502, 602]),
        run(5, AGAIN, [702, 802, 902]),
        run(6, PLAIN, [700, 800, 900]),
    ]
    found = telemetry_cost(runs)
    assert found is not None
    assert found["pairs"] == 9
    assert (found["with_median_ns"], found["without_median_ns"]) == (502, 500)
    assert found["share"] == found["share_low"] == found["share_high"] == 2 / 500
    assert found["medians_difference_share"] == pytest.approx(2 / 500)
    assert found["within_target"]


def test_a_dear_telemetry_is_not_within_the_target() -> None:
    found = telemetry_cost([run(1, WARM, [102] * 5), run(2, PLAIN, [100] * 5)])
    assert found is not None
    assert not found["within_target"]


def test_no_pairs_no_figure() -> None:
    assert telemetry_cost([run(0, COLD, [5]), run(1, WARM, [5])]) is None
    cut = run(2, PLAIN, [5], complete=False)
    assert telemetry_cost([run(0, COLD, [5]), run(1, WARM, [5]), cut]) is None


def test_interval_of_a_median() -> None:
    # Of 100 values, ranks 50 ± 9.8, rounded outwards: 40 and 60.
    assert median_interval(list(range(100))) == (40.0, 60.0)
    assert median_interval([3.0]) == (3.0, 3.0)


@pytest.mark.parametrize(
    ("ids", "complete", "expected"),
    [((1, 2, 3), True, True), ((1, 2), False, True), ((1, 2), True, False), ((1, 9), False, False)],
)
def test_tokens_are_the_same_in_all_runs(
    ids: tuple[int, ...], complete: bool, expected: bool
) -> None:
    runs = [run(0, COLD, [1, 1]), run(1, PLAIN, [1, 1], ids=ids, complete=complete)]
    assert same_tokens(runs) is expected
