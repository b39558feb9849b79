"""Readings that did not come from a device are caught, and those that did pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm import core
from flashllm.bench import page_cache
from flashllm.bench.disk import probe as io_probe
from flashllm.bench.disk.probe import check_device_bytes, forget, make_buffer, measure, probe
from flashllm.bench.disk.target import find_target
from flashllm.errors import BenchmarkInvalid, ReadFailed, UsageError

FILE_BYTES = 24 << 20

needs_native = pytest.mark.skipif(core.NAME != "native", reason="the twin reads one at a time")
needs_linux = pytest.mark.skipif(
    page_cache.device_bytes() is None, reason="this system does not tell what devices were asked"
)


@pytest.fixture(scope="module")
def disk_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of random bytes on a disk, or nothing can be shown here."""
    path = tmp_path_factory.mktemp("io") / "data.bin"
    np.random.default_rng(3).integers(0, 256, FILE_BYTES, dtype=np.uint8).tofile(path)
    try:
        core.Reader(str(path), "required", 1).close()
    except OSError:
        pytest.skip("temporary files lie where there is no direct I/O")
    return path


@needs_native
@needs_linux
def test_direct_reads_are_measured_and_proven(disk_file: Path) -> None:
    results = probe(disk_file, 16384, 4, 0.05, repeats=2)
    assert len(results) == 2
    for result in results:
        assert result.proven
        assert result.reads > 0
        assert result.bytes_per_second == pytest.approx(
            result.reads * 16384 * 1e9 / result.elapsed_ns
        )
        assert result.latencies.n == pytest.approx(result.reads, abs=4)  # those in flight
        assert 1 < result.depth_mean <= 4


@needs_native
@needs_linux
def test_a_buffered_read_of_a_cached_file_is_caught(disk_file: Path) -> None:
    disk_file.read_bytes()
    with pytest.raises(BenchmarkInvalid, match="page cache"):
        measure(disk_file, 16384, 4, 0.05, make_buffer(16384), direct="disabled")


@needs_linux
def test_a_file_in_the_page_cache_is_seen_and_dropped(disk_file: Path) -> None:
    disk_file.read_bytes()
    assert page_cache.resident_bytes(disk_file, FILE_BYTES) == FILE_BYTES
    forget(disk_file)
    assert page_cache.resident_bytes(disk_file, FILE_BYTES) == 0


@needs_linux
def test_pages_that_stay_in_the_cache_are_caught(
    disk_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_file.read_bytes()
    monkeypatch.setattr(page_cache, "drop_pages", lambda path: None)
    with pytest.raises(BenchmarkInvalid, match="24 MiB of it lie in the page cache"):
        probe(disk_file, 4096, 1, 0.05)
    page_cache.drop_pages(disk_file)


def test_whose_pages_may_not_be_asked_for_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To a reader who neither owns nor may write it, Linux says that every page is there.
    path = tmp_path / "theirs"
    path.write_bytes(bytes(4096))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert page_cache.resident_bytes(path, 4096) is None


@needs_native
@needs_linux
@pytest.mark.parametrize("hole", ["never written", "reserved"])
def test_holes_never_reach_the_device_and_are_caught(disk_file: Path, hole: str) -> None:
    path = disk_file.with_name("hole")
    with path.open("wb") as stream:
        if hole == "reserved":
            os.posix_fallocate(stream.fileno(), 0, FILE_BYTES)
        stream.truncate(FILE_BYTES)
    with pytest.raises(
        BenchmarkInvalid, match="holes" if hole == "never written" else "never written"
    ):
        probe(path, 16384, 4, 0.05)


@needs_native
def test_reads_of_a_region_stay_within_it(disk_file: Path) -> None:
    # The file is a hole but for its middle: any read outside it would be caught.
    path = disk_file.with_name("middle")
    with path.open("wb") as stream:
        stream.truncate(FILE_BYTES)
        stream.seek(8 << 20)
        stream.write(disk_file.read_bytes()[: 4 << 20])
    probe(path, 4096, 4, 0.05, repeats=1, region=(8 << 20, 12 << 20))
    with pytest.raises(UsageError, match="smaller than one read"):
        probe(path, 8192, 1, 0.05, region=(4096, 8192))


@pytest.mark.parametrize(
    ("fetched", "holds"),
    [(100 << 20, True), (99 << 20, True), (98 << 20, False), (0, False), (200 << 20, False)],
)
def test_one_percent_decides(disk_file: Path, fetched: int, holds: bool) -> None:
    if holds:
        assert check_device_bytes(disk_file, 5, 5 + fetched, 100 << 20)
    else:
        with pytest.raises(BenchmarkInvalid, match=f"asked for {fetched}"):
            check_device_bytes(disk_file, 5, 5 + fetched, 100 << 20)


@needs_native
@pytest.mark.parametrize("times", [1, 2])
def test_what_the_program_itself_reads_is_measured_without(
    disk_file: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its own code, which may come from the device once, is no fault of the file system's."""
    fetched, elsewhere = 0, [64 << 20] * times
    measured = io_probe._measured

    def counted(*task: Any) -> tuple[io_probe.ProbeResult, int]:
        result, asked = measured(*task)
        nonlocal fetched
        fetched += asked + (elsewhere.pop() if elsewhere else 0)
        return result, asked

    monkeypatch.setattr(io_probe.page_cache, "device_bytes", lambda: fetched)
    monkeypatch.setattr(io_probe, "_measured", counted)
    if times == 1:
        assert measure(disk_file, 4096, 4, 0.02, make_buffer(4096)).proven
    else:
        with pytest.raises(BenchmarkInvalid, match="read elsewhere"):
            measure(disk_file, 4096, 4, 0.02, make_buffer(4096))


def test_without_an_account_of_devices_nothing_is_proven(disk_file: Path) -> None:
    assert not check_device_bytes(disk_file, None, None, 100)


@needs_native
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory here")
def test_a_file_system_without_direct_io_is_refused() -> None:
    path = Path(f"/dev/shm/flashllm-test-{os.getpid()}")
    path.write_bytes(bytes(4 << 20))
    try:
        # Newer systems accept direct reads of memory; then its pages give it away.
        with pytest.raises(BenchmarkInvalid, match=r"direct I/O is required but refused|cache"):
            probe(path, 4096, 1, 0.05)
        with pytest.raises(BenchmarkInvalid, match="lies in memory"):
            find_target(path)
    finally:
        path.unlink()


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match="No such file"):
        probe(tmp_path / "absent", 4096, 1, 0.05)


@needs_native
def test_an_interruption_leaves_no_read_behind(
    disk_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object, seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(io_probe._Load, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        probe(disk_file, 4096, 4, 10.0)
