"""Latencies: bins as the native core has them, and what is read out of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flashllm.core.numpy_twin.latency import BINS, FIRST_NS, Latencies, bin_of


def histogram(times_ns: np.ndarray) -> Latencies:
    counts = np.zeros(BINS, np.uint64)
    for time_ns in times_ns.tolist():
        counts[bin_of(time_ns)] += np.uint64(1)
    return Latencies(counts)


def test_every_bin_begins_where_the_one_before_ended() -> None:
    assert BINS == 1856
    assert np.all(np.diff(FIRST_NS) > 0)
    for i in range(BINS - 1):
        assert bin_of(int(FIRST_NS[i])) == i
        assert bin_of(int(FIRST_NS[i + 1]) - 1) == i
    assert bin_of(1 << 62) == BINS - 1


@pytest.mark.parametrize(
    ("percent", "rank"), [(0.1, 20), (50, 10_000), (99, 19_800), (99.9, 19_980), (100, 20_000)]
)
def test_percentiles_are_those_of_the_sorted_times(percent: float, rank: int) -> None:
    times_ns = np.random.default_rng(2).lognormal(11, 1.5, 20_000).astype(np.int64)
    expected = np.sort(times_ns)[rank - 1]
    found = histogram(times_ns)
    assert found.percentile_ns(percent) == pytest.approx(expected, rel=1 / 128)
    assert found.mean_ns == pytest.approx(times_ns.mean(), rel=1 / 128)
    assert found.max_ns == pytest.approx(times_ns.max(), rel=1 / 64)
    assert found.max_ns >= times_ns.max()
    assert found.n == 20_000


def test_times_of_few_nanoseconds_are_exact() -> None:
    found = histogram(np.arange(1, 101))
    assert [found.percentile_ns(p) for p in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert (found.mean_ns, found.max_ns) == (50.5, 100)


def test_of_nothing_everything_is_nothing() -> None:
    assert set(Latencies.merge([]).summary().values()) == {0}
    assert Latencies.merge([]).to_json()["bins_ns"] == []


def test_histograms_are_added_and_subtracted() -> None:
    early = histogram(np.array([5, 1000, 1000]))
    late = early + histogram(np.array([70_000]))
    assert (late - early).to_json()["bins_ns"] == [[69_632, 1]]
    assert Latencies.merge([late, early]).n == 7
    with pytest.raises(ValueError, match="earlier"):
        _ = early - late
    with pytest.raises(ValueError, match="1856"):
        Latencies(np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match="percentile 0"):
        late.percentile_ns(0)


def test_a_reader_counts_every_read_once(core: ModuleType, open_reader: Callable[..., Any]) -> None:
    reader = open_reader(threads=4, max_read_bytes=4096)
    buffer = core.Buffer(1 << 18)
    places = np.arange(0, 60 * 4096, 4096)
    before = Latencies(reader.latency_histogram())
    assert before.n == 0
    reader.read(places, 4096, buffer, places)
    found = Latencies(reader.latency_histogram()) - before
    stats = reader.stats()
    assert found.n == stats["reads"] == 60
    # The depth is the sum of the latencies, to the nanosecond; the bins know it to 0.78 %.
    assert found.mean_ns * found.n == pytest.approx(stats["depth_ns"], rel=1 / 128)
    assert found.summary()["p50"] <= found.summary()["max"]
    reader.close()


def test_a_reader_notes_when_it_reads(core: ModuleType, open_reader: Callable[..., Any]) -> None:
    reader = open_reader(threads=4, max_read_bytes=4096)
    buffer = core.Buffer(1 << 18)
    places = np.arange(0, 60 * 4096, 4096)
    reader.read(places, 4096, buffer, places)
    assert len(reader.take_read_times()) == 0
    reader.keep_read_times(True)
    before_ns, depth_ns = time.perf_counter_ns(), reader.stats()["depth_ns"]
    reader.read(places, 4096, buffer, places)
    times = reader.take_read_times().reshape(-1, 2)
    assert times.shape == (60, 2)
    assert before_ns <= times.min()
    assert times.max() <= time.perf_counter_ns()
    assert np.sum(times[:, 1] - times[:, 0]) == reader.stats()["depth_ns"] - depth_ns
    assert len(reader.take_read_times()) == 0
    reader.keep_read_times(False)
    reader.read(places, 4096, buffer, places)
    assert len(reader.take_read_times()) == 0
    reader.close()


def test_a_stream_leaves_memory_alone(core: ModuleType) -> None:
    buffer = core.Buffer(1 << 20)
    buffer.array()[:] = 90
    assert core.stream_read_ns(buffer, 2) > 0
    assert np.all(buffer.array() == 90)
    for threads in (0, 1025):
        with pytest.raises(ValueError, match="threads is"):
            core.stream_read_ns(buffer, threads)


def test_rows_are_read_where_they_are(core: ModuleType) -> None:
    data, ids = np.full(11 * 200, 90, np.uint8), np.array([10, 0, 3, 3], np.int32)
    assert core.row_read_ns(data, 200, ids, 2) > 0
    assert core.row_read_ns(data, 200, ids[:0], 2) > 0
    assert np.all(data == 90)
    with pytest.raises(IndexError, match="11"):
        core.row_read_ns(data, 200, np.array([11], np.int32), 1)
    with pytest.raises(ValueError, match="row_bytes is 0"):
        core.row_read_ns(data, 0, ids, 1)
    with pytest.raises(ValueError, match="threads is 0"):
        core.row_read_ns(data, 200, ids, 0)
