"""Work by several threads, in order: what comes, how much at once, and how it ends."""

from __future__ import annotations

import threading
import time

import pytest
from flashllm.convert.source import parallel
from flashllm.convert.source.parallel import in_order


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: 3)


def bundling() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("converting")]


def test_results_are_in_order_whichever_is_ready_first() -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 4 == 0))
        return number * number

    assert list(in_order(work, range(40))) == [number * number for number in range(40)]
    assert list(in_order(work, [])) == []
    assert not bundling()


def test_several_threads_work_at_once() -> None:
    meeting = threading.Barrier(3, timeout=10)
    assert list(in_order(lambda _: meeting.wait() >= 0, range(3))) == [True] * 3


def test_no_more_is_held_than_one_result_beside_those_of_the_threads() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return number

    results = in_order(work, range(100))
    for number in range(10):
        assert next(results) == number
        assert len(begun) <= number + 4
    results.close()
    assert not bundling()
    assert len(begun) < 20


def test_an_error_comes_in_its_turn_and_ends_the_rest() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number in (2, 3):
            raise ValueError(f"item {number}")
        return number

    results = in_order(work, range(50))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="item 2"):
        next(results)
    assert not bundling()
    assert max(begun) < 10
