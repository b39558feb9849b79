"""How far long work is and how long it will take, by a clock that the test turns."""

from __future__ import annotations

import pytest

from flashllm.schedule import ExpectedPhase, Schedule


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def moving(name: str, seconds: float, times: int = 1) -> ExpectedPhase:
    return ExpectedPhase(name, "moving", seconds, times)


def computing(name: str, seconds: float, times: int = 1) -> ExpectedPhase:
    return ExpectedPhase(name, "computing", seconds, times)


def test_before_anything_begins_nothing_is_known(clock: Clock) -> None:
    schedule = Schedule([moving("a", 10)], clock)
    assert (schedule.share, schedule.seconds_left, schedule.seconds) == (0.0, None, 0.0)
    assert Schedule([], clock).seconds_left is None


def test_what_goes_as_expected(clock: Clock) -> None:
    schedule = Schedule([moving("a", 10), moving("b", 30)], clock)
    schedule.start("a", 100)
    assert schedule.seconds_left == pytest.approx(40)
    schedule.advance(50)
    clock.now += 5
    assert schedule.share == pytest.approx(5 / 40)
    assert schedule.seconds_left == pytest.approx(35)
    schedule.advance(50)
    clock.now += 5
    schedule.start("b", 7)
    assert (schedule.share, schedule.seconds_left) == (pytest.approx(0.25), pytest.approx(30))
    schedule.advance(7)
    clock.now += 30
    schedule.finish()
    assert (schedule.share, schedule.seconds_left) == (1.0, pytest.approx(0))
    assert (schedule.seconds, schedule.spent("moving")) == (40, 40)


def test_a_slow_disk_makes_later_phases_of_bytes_slow_too(clock: Clock) -> None:
    schedule = Schedule([moving("a", 10), computing("train", 100), moving("b", 20)], clock)
    schedule.start("a", 100)
    schedule.advance(50)
    clock.now += 15  # three times as long as expected
    # 15 s of this phase, 3 x 20 of the last one; computing says nothing of itself yet.
    assert schedule.seconds_left == pytest.approx(15 + 100 + 60)
    schedule.advance(50)
    clock.now += 15
    schedule.start("train", 10)
    schedule.advance(5)
    clock.now += 25  # twice as fast as expected
    assert schedule.seconds_left == pytest.approx(25 + 60)
    assert schedule.spent("computing") == 25


def test_parts_are_shares_of_their_phase(clock: Clock) -> None:
    phases = [computing("recording", 10), computing("training", 30), computing("judging", 4, 4)]
    schedule = Schedule(phases, clock)
    schedule.start("recording, part 1 of 2", 100)
    schedule.advance(100)
    clock.now += 5
    schedule.start("training, part 1 of 2", 100)
    assert schedule.share == pytest.approx(5 / 44)
    schedule.advance(50)
    clock.now += 7.5
    assert schedule.share == pytest.approx(12.5 / 44)
    assert schedule.seconds_left == pytest.approx(44 - 12.5)
    schedule.start("recording, part 2 of 2", 100)
    assert schedule.share == pytest.approx(20 / 44)
    schedule.start("training, part 2 of 2", 100)
    schedule.start("judging with all", 1)
    assert schedule.share == pytest.approx(40 / 44)
    schedule.start("judging with some", 1)
    assert schedule.share == pytest.approx(41 / 44)
    for _ in range(9):  # more often than expected
        schedule.start("judging again", 1)
    assert schedule.share <= 1
    assert schedule.seconds_left is not None


def test_what_nobody_expected_counts_for_nothing(clock: Clock) -> None:
    schedule = Schedule([moving("a", 10)], clock)
    schedule.start("looking around", 5)
    schedule.advance(5)
    clock.now += 3
    assert (schedule.share, schedule.seconds_left) == (0.0, pytest.approx(10))
    schedule.start("a", 0)
    schedule.advance(0)
    assert schedule.share == 0.0


def test_what_is_expected_is_said_before() -> None:
    schedule = Schedule()
    schedule.expect([moving("a", 1)])
    schedule.start("a", 1)
    with pytest.raises(AssertionError):
        schedule.expect([])
