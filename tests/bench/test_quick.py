"""A quick profile: what it measures, that it gives way, and what becomes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm import core
from flashllm.bench.disk import probe, quick
from flashllm.bench.disk.quick import GiveWay, make_quick_profile, quick_settings, run_quick
from flashllm.bench.disk.sweep import Settings
from flashllm.bench.disk.target import Target, find_target
from flashllm.core.numpy_twin.latency import BINS, Latencies
from flashllm.errors import BenchmarkInvalid, FlashllmError, UsageError
from flashllm.hardware.device import DeviceIdentity

pytestmark = pytest.mark.skipif(core.NAME != "native", reason="the twin reads one at a time")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    path = tmp_path / "data.bin"
    np.random.default_rng(4).integers(0, 256, 8 << 20, dtype=np.uint8).tofile(path)
    try:
        probe.probe(path, 4096, 1, 0.01, repeats=1)
        return find_target(path)
    except FlashllmError:
        pytest.skip("temporary files lie where nothing can be measured")


def short(target: Target) -> Settings:
    settings = quick_settings(target)
    return Settings(settings.sizes, settings.threads, 0.01, settings.runs)


def a_target(nbytes: int) -> Target:
    return Target(Path("x"), nbytes, DeviceIdentity("k", "vda", "ext4", "rw", "ssd"))


def test_sizes_are_those_that_a_file_has_room_for() -> None:
    assert quick_settings(a_target(8 << 20)).sizes == [4 << 10, 32 << 10]
    assert quick_settings(a_target(1 << 30)).sizes == list(quick.SIZES)
    with pytest.raises(UsageError, match=r"3 MiB, too few for a quick profile; .* 4 MiB or more"):
        quick_settings(a_target(3 << 20))
    with pytest.raises(UsageError, match="1024 MiB or more"):
        quick_settings(a_target(8 << 20), is_rotational=True)


def test_every_point_is_measured_and_marked(target: Target) -> None:
    told: list[tuple[int, int]] = []
    sweep = run_quick(target, short(target), GiveWay(), lambda *done: told.append(done))
    profile = make_quick_profile(target, sweep, None)
    assert profile.quick
    assert not profile.chooses_reads
    assert {(point.read_bytes, point.threads) for point in profile.points} == {
        (size, threads) for size in (4 << 10, 32 << 10) for threads in quick.THREADS
    }
    assert all(len(point.samples) in (2, 3) for point in profile.points)
    assert told[0] == (0, 12)
    assert len(told) in (12, 18)


def test_the_page_cache_of_the_file_is_left_alone(target: Target) -> None:
    from flashllm.bench import page_cache

    target.path.read_bytes()
    before = page_cache.resident_bytes(target.path, target.file_bytes)
    run_quick(target, short(target), GiveWay(), lambda done, points: None)
    after = page_cache.resident_bytes(target.path, target.file_bytes)
    if before is None or after is None:
        pytest.skip("this system does not tell what is cached")
    assert after >= before * 0.9


class Road:
    """Is wanted while a test says so; remembers when it was asked."""

    def __init__(self) -> None:
        self.wanted = threading.Event()

    def __call__(self) -> bool:
        return self.wanted.is_set()


def test_a_measurement_ends_as_soon_as_somebody_wants_the_disk(target: Target) -> None:
    road = Road()
    way = GiveWay(road)
    buffer = probe.make_buffer(4096, 1 << 20)
    timer = threading.Timer(0.1, road.wanted.set)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(InterruptedError):
        probe.measure(target.path, 4096, 8, 30.0, buffer, guard=way.guard)
    assert time.monotonic() - begin < 15.0  # not the 30 s that it would have taken
    timer.join()


def test_what_was_disturbed_is_measured_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def measure(path: Path, size: int, threads: int, *_: Any, **__: Any) -> probe.ProbeResult:
        asked.append((size, threads))
        if len(asked) in (2, 3):
            raise InterruptedError
        latencies = Latencies(np.ones(BINS, np.uint64))
        return probe.ProbeResult(size, threads, 10, 10**6, 1e9, 1.0, latencies, True)

    monkeypatch.setattr(probe, "measure", measure)
    monkeypatch.setattr(quick, "QUIET_SECONDS", 0.0)
    sweep = run_quick(target, short(target), GiveWay(), lambda done, points: None)
    assert asked[1] == asked[2] == asked[3]
    assert {len(results) for results in sweep.ours.values()} == {2}


def test_reads_land_as_far_apart_as_those_of_a_sweep(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into few MiB, which stay in a cache, a disk gives more than a model gets."""
    landed: set[int] = set()

    def measure(
        path: Path, size: int, threads: int, seconds: float, buffer: core.Buffer, **_: Any
    ) -> probe.ProbeResult:
        landed.add(buffer.nbytes)
        latencies = Latencies(np.ones(BINS, np.uint64))
        return probe.ProbeResult(size, threads, 10, 10**6, 1e9, 1.0, latencies, True)

    monkeypatch.setattr(probe, "measure", measure)
    monkeypatch.setattr(quick, "QUIET_SECONDS", 0.0)
    run_quick(target, short(target), GiveWay(), lambda done, points: None)
    assert landed == {probe.BUFFER_BYTES}


def test_passes_that_differ_lead_to_one_more(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = iter(range(1000))

    def measure(path: Path, size: int, threads: int, *_: Any, **__: Any) -> probe.ProbeResult:
        rate = 4e12 / size * (1 if next(count) < 6 else 5)
        latencies = Latencies(np.ones(BINS, np.uint64))
        return probe.ProbeResult(size, threads, 10, 10**6, rate, 1.0, latencies, True)

    monkeypatch.setattr(probe, "measure", measure)
    sweep = run_quick(target, short(target), GiveWay(), lambda done, points: None)
    assert {len(results) for results in sweep.ours.values()} == {3}


def test_waiting_lasts_until_it_has_been_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, True, False])

    def wanted() -> bool:
        return next(answers, False)

    moments: Iterator[float] = iter(range(10_000))
    monkeypatch.setattr(quick.time, "monotonic", lambda: next(moments) * 0.1)
    monkeypatch.setattr(quick.time, "sleep", lambda seconds: None)
    way = GiveWay(wanted)
    way.wait()
    # Five steps of 0.1 s after the last time that somebody wanted it.
    assert next(moments) >= 6


def test_nobody_waits_for_ever() -> None:
    with pytest.raises(BenchmarkInvalid, match="a model answered all the time"):
        GiveWay(lambda: True, seconds_most=0.05).wait()
