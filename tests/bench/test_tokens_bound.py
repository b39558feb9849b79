"""The bound by hand, and what a look at the machine asks for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flashllm.bench.disk.probe import BUFFER_BYTES
from flashllm.bench.tokens import machine_probe as bound_module
from flashllm.bench.tokens.machine_probe import MachineProbe, mean_read_bytes, memory_warning
from flashllm.bench.tokens.machine_rates import pages_rate
from flashllm.bench.tokens.samples import WARM, ReaderCounts
from flashllm.errors import ReadFailed
from flashllm.telemetry.roofline import Bound
from flashllm.units import MIB
from tests.support.token_fakes import run

DEVICE = {"direct": True, "threads": 32, "alignment_bytes": 512, "fallback": None}
WEIGHTS = np.ones(1 << 20, np.uint8)
ROOMY_BYTES = 1 << 40
STRIDE_BYTES = 4608
READ = ReaderCounts(
    bytes_read=100_000, bytes_useful=90_000, reads=20, busy_ns=1000, depth_ns=6600, retries=0,
    short_reads=0, bounced=0, downgrades=0, bundles_verified=0, bundles_mismatched=0,
)  # fmt: skip


def test_bound_by_hand() -> None:
    # 30 MB at 1.5 GB/s are 20 ms, 100 MB at 20 GB/s are 5 ms; the token took 40 ms.
    found = Bound(30e6, 1.5e9, 100e6, 20e9, 40e6).to_json()
    assert found["flash_ns"] == pytest.approx(20e6)
    assert found["dram_ns"] == pytest.approx(5e6)
    assert found["larger_ns"] == pytest.approx(20e6)
    assert found["sum_ns"] == pytest.approx(25e6)
    assert found["share"] == pytest.approx(0.5)
    assert found["sum_share"] == pytest.approx(0.625)
    assert found["binds"] == "flash"
    assert json.loads(json.dumps(found)) == found


def test_dram_binds_where_little_is_read() -> None:
    found = Bound(1e6, 1.5e9, 100e6, 20e9, 40e6)
    assert (found.binds, found.larger_ns) == ("DRAM", pytest.approx(5e6))
    assert Bound(0.0, None, 100e6, 20e9, 40e6).flash_ns == 0.0


def test_of_flash_nothing_is_said_where_it_is_unknown() -> None:
    found = Bound(30e6, None, 100e6, 20e9, 40e6)
    assert found.flash_ns is None
    assert found.larger_ns == found.sum_ns == pytest.approx(5e6)


@pytest.mark.parametrize(
    ("nbytes", "reads", "alignment", "expected"),
    [(100_000, 20, 512, 5120), (100_000, 20, 4096, 4096), (10, 5, 512, 512), (0, 0, 512, 512)],
)
def test_mean_read(nbytes: int, reads: int, alignment: int, expected: int) -> None:
    assert (
        mean_read_bytes(ReaderCounts(nbytes, 0, reads, 0, 0, 0, 0, 0, 0, 0, 0), alignment)
        == expected
    )


def probe_of(
    path: Path, ceiling_bytes: int = ROOMY_BYTES, stride_bytes: int = STRIDE_BYTES
) -> MachineProbe:
    return MachineProbe(path, DEVICE, 2, ceiling_bytes, WEIGHTS, stride_bytes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the probe of the device was asked for; it gives as many GB/s as threads."""
    asked: list[tuple[Any, ...]] = []

    def probe(
        path: Path, read_bytes: int, threads: int, seconds: float, repeats: int, buffer_bytes: int
    ) -> Any:
        assert 0 < buffer_bytes <= BUFFER_BYTES
        asked.append((path, read_bytes, threads))
        return [SimpleNamespace(bytes_per_second=threads * 1e9)] * repeats

    monkeypatch.setattr(bound_module, "probe", probe)
    monkeypatch.setattr(bound_module, "matrix_bytes", lambda *_: 1 << 16)
    monkeypatch.setattr(bound_module, "dram_rate", lambda buffer, threads: 5e9 * threads)
    return asked


def test_the_device_is_asked_at_size_and_depth_of_the_run(asked: list[Any], tmp_path: Path) -> None:
    found = probe_of(tmp_path).look(run(3, WARM, [1], reader=READ))
    assert asked == [(tmp_path, 5120, 7), (tmp_path, 5120, 32)]
    assert (found.run, found.read_bytes, found.depth) == (3, 5120, 7)
    assert (found.flash_bytes_per_second, found.flash_all_bytes_per_second) == (7e9, 32e9)
    assert (found.dram_threads, found.dram_bytes_per_second) == (2, 1e10)


@pytest.mark.parametrize(
    ("stride_bytes", "read_bytes"), [(4608, 5120), (5120, 5120), (16384, 4096), (4096, 4096)]
)
def test_the_device_is_asked_at_places_where_bundles_begin(
    asked: list[Any], tmp_path: Path, stride_bytes: int, read_bytes: int
) -> None:
    """Reads that begin at a page are faster, and of a whole number of pages all do."""
    probe_of(tmp_path, stride_bytes=stride_bytes).look(run(3, WARM, [1], reader=READ))
    assert {size for _, size, _ in asked} == {read_bytes}


def test_without_direct_reads_the_device_is_not_asked(asked: list[Any], tmp_path: Path) -> None:
    probe = MachineProbe(tmp_path, {**DEVICE, "direct": False}, 2, ROOMY_BYTES, WEIGHTS, 512)
    found = probe.look(run(3, WARM, [1], reader=READ))
    assert not asked
    assert found.flash_bytes_per_second is None
    assert probe.problem is not None
    assert "page cache" in probe.problem


def test_a_device_that_cannot_be_measured_says_why(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ReadFailed("the disk is gone")

    monkeypatch.setattr(bound_module, "probe", broken)
    probe = probe_of(tmp_path)
    assert probe.look(run(3, WARM, [1], reader=READ)).flash_bytes_per_second is None
    assert probe.problem == "the disk is gone"


def test_nothing_is_read_nothing_is_asked(asked: list[Any], tmp_path: Path) -> None:
    found = probe_of(tmp_path).look(run(3, WARM, [1]))
    assert not asked
    assert found.flash_bytes_per_second is None


def test_where_the_ceiling_has_no_room_the_models_own_weights_are_read(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident_bytes = 300 * MIB
    read: list[Any] = []
    monkeypatch.setattr(bound_module, "rss_bytes", lambda: resident_bytes)
    monkeypatch.setattr(bound_module, "matrix_bytes", lambda *_: 256 * MIB)
    monkeypatch.setattr(
        bound_module, "pages_rate", lambda memory, threads: read.append(memory) or 7e9 * threads
    )
    probe = probe_of(tmp_path, resident_bytes + 255 * MIB)
    assert probe.look(run(3, WARM, [1], reader=READ)).dram_bytes_per_second == 1.4e10
    assert read[0] is WEIGHTS
    assert len(asked) == 2
    # Nor is there any for a buffer to read into.
    probe = probe_of(tmp_path, resident_bytes + 7 * MIB)
    assert probe.look(run(4, WARM, [1], reader=READ)).flash_bytes_per_second is None
    assert len(asked) == 2
    assert "the ceiling leaves no memory" in str(probe.problem)


def test_memory_that_is_there_is_read_whole_pieces_of_it() -> None:
    assert pages_rate(WEIGHTS, 1) > 0
    assert pages_rate(WEIGHTS[:1000], 2) > 0


def test_memory_that_is_faster_at_times_is_spoken_of() -> None:
    assert memory_warning([]) == memory_warning([50e9]) == memory_warning([50e9, 59e9, 55e9]) == ""
    assert "memory gave 45 to 75 GB/s" in memory_warning([75e9, 45e9, 46e9])
