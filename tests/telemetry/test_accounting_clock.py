"""The clock of the parts, the meter around it, and what stands in for both."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from flashllm.system import memory
from flashllm.system.clock import PARTS, PartClock
from flashllm.telemetry.costs import NO_COST
from flashllm.telemetry.meter import RSS_EVERY_NS, Meter, NoMeter
from flashllm.weight_cache.counters import StreamCounters


class Times:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr("flashllm.system.clock.now_ns", times)
    monkeypatch.setattr("flashllm.telemetry.meter.now_ns", times)
    return times


class FakeReader:
    """Counts that a test sets."""

    def __init__(self) -> None:
        self.asked = 0
        self.counts: dict[str, Any] = dict.fromkeys(
            ("bytes_read", "bytes_useful", "reads", "busy_ns", "depth_ns", "depth_max"), 0
        )
        self.sizes = [0] * 32

    def __call__(self) -> dict[str, Any]:
        self.asked += 1
        return {**self.counts, "size_histogram": list(self.sizes)}


def test_every_nanosecond_belongs_to_one_part(times: Times) -> None:
    clock = PartClock()
    clock.start()
    for part, ns in (("attention", 5), ("ffn", 7), ("attention", 11), ("head", 13)):
        times.now_ns += 3 if part == "attention" else 0
        clock.switch(part)
        times.now_ns += ns
    spent = clock.stop()
    assert tuple(spent) == PARTS
    expected = {"attention": 16, "ffn": 10, "head": 13, "other": 3}
    assert spent == dict.fromkeys(PARTS, 0) | expected


def test_nothing_is_counted_outside_of_start_and_stop(times: Times) -> None:
    clock = PartClock()
    clock.switch("ffn")
    times.now_ns += 100
    clock.start()
    times.now_ns += 1
    assert sum(clock.stop().values()) == 1
    clock.switch("ffn")
    times.now_ns += 100
    assert sum(clock.stop().values()) == 1


def test_steps_are_told_apart(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashllm.telemetry.meter.rss_bytes", lambda: 123)
    reader, counters = FakeReader(), StreamCounters(hits=100)
    meter = Meter(reader, counters, PartClock())
    for step in (1, 2, 3):
        meter.start()
        meter.clock.switch("ffn")
        times.now_ns += 10 * step
        reader.counts["bytes_read"] += 4096 * step
        reader.counts["reads"] += step
        reader.sizes[12] += step
        counters.hits += 2 * step
        counters.misses += step
        cost = meter.token()
        assert (cost.bytes_read, cost.reads, cost.size_histogram[12]) == (4096 * step, step, step)
        assert (cost.hits, cost.misses, cost.evicted_early) == (2 * step, step, 0)
        assert cost.parts_ns["ffn"] == cost.wall_ns == 10 * step
        assert cost.rss_bytes == 123
        times.now_ns += 1000  # what the caller does is no part of a step
    assert reader.asked == 4


def test_memory_is_asked_for_now_and_then(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    rss_bytes = "flashllm.telemetry.meter.rss_bytes"
    monkeypatch.setattr(rss_bytes, lambda: asked.append(times.now_ns) or len(asked))
    meter, found = Meter(FakeReader(), StreamCounters(), PartClock()), []
    for _ in range(5):
        meter.start()
        times.now_ns += RSS_EVERY_NS // 2
        found.append(meter.token().rss_bytes)
    assert found == [1, 1, 2, 2, 3]


def test_without_a_meter_the_clock_stands_still(times: Times) -> None:
    clock = PartClock()
    clock.start()  # of a step that was cancelled
    meter = NoMeter(clock)
    meter.start()
    before = clock.stop()
    clock.switch("ffn")
    times.now_ns += 50
    assert clock.stop() == before
    assert meter.token() is NO_COST
    assert NO_COST.to_json()["wall_ns"] == 0


def test_resident_memory_is_what_psutil_says(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = memory.rss_bytes(), psutil.Process().memory_info().rss
    assert mine == pytest.approx(theirs, rel=0.05)

    def no_proc(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(memory.os, "open", no_proc)
    assert memory.rss_bytes() == pytest.approx(theirs, rel=0.05)
