"""The sweep: what is chosen, fitted, reported and drawn, without a disk."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flashllm.bench.disk import fio, plots, probe, report, target
from flashllm.bench.disk import sweep as io_sweep
from flashllm.bench.disk.fio import FioResult, fio_command, parse_report, run_fio
from flashllm.bench.disk.fit import fit_points, has_rate, reason_to_doubt
from flashllm.bench.disk.probe import ProbeResult
from flashllm.bench.disk.sweep import Settings, Sweep, make_profile, run_sweep
from flashllm.bench.disk.target import Target, choose_sizes, choose_threads, find_target
from flashllm.core.numpy_twin.latency import BINS, Latencies, bin_of
from flashllm.errors import (
    BenchmarkInvalid,
    ModelNotFound,
    NotACheckpoint,
    ReadFailed,
    UsageError,
)
from flashllm.hardware.curves import IoPoint
from flashllm.hardware.device import DeviceIdentity
from flashllm.hardware.machine_profile import Profile

SIZES = (4096, 16384, 65536)


def make_target(file_bytes: int = 4 << 30, kind: str = "nvme", filesystem: str = "ext4") -> Target:
    identity = DeviceIdentity("nvme0n1-0", "a disk", filesystem, "rw", kind)
    return Target(Path("/data/file"), file_bytes, identity)


def make_result(size: int, threads: int, rate: float) -> ProbeResult:
    counts = np.zeros(BINS, np.uint64)
    counts[bin_of(int(threads * size * 1e9 / rate))] = 1000
    elapsed_ns = int(1000 * size * 1e9 / rate)
    return ProbeResult(
        size, threads, 1000, elapsed_ns, rate, float(threads), Latencies(counts), True
    )


def points(per_read_ns: float, rate: float, sizes: Any = SIZES) -> list[IoPoint]:
    speeds = [size * 1e9 / (per_read_ns + size * 1e9 / rate) for size in sizes]
    return [IoPoint(s, 32, v, (v,), {"p50": 1}) for s, v in zip(sizes, speeds, strict=True)]


def test_a_fit_finds_the_line() -> None:
    (fit,) = fit_points(points(2500.0, 3e9))
    assert fit.per_read_ns == pytest.approx(2500)
    assert fit.bytes_per_second == pytest.approx(3e9)
    assert fit.error == pytest.approx(0, abs=1e-9)


def test_a_fit_says_how_wrong_it_is() -> None:
    bent = points(2500.0, 3e9, (4096, 16384, 65536, 262144))
    bent[1] = IoPoint(16384, 32, bent[1].bytes_per_second / 1.2, (1.0,), {})
    (fit,) = fit_points(bent)
    found = [fit.read_ns(p.read_bytes) * p.bytes_per_second / p.read_bytes / 1e9 for p in bent]
    assert fit.error == pytest.approx(max(abs(ratio - 1) for ratio in found))
    assert 0.05 < fit.error < 0.2


@pytest.mark.parametrize("speeds", [(9e8, 4e8, 2e8), (1e6, 4.1e6, 17e6), (1e8, 1e8, 1e8)])
def test_a_fit_has_no_negative_cost(speeds: tuple[float, ...]) -> None:
    odd = [IoPoint(s, 8, v, (v,), {}) for s, v in zip(SIZES, speeds, strict=True)]
    (fit,) = fit_points(odd)
    assert fit.per_read_ns >= 0
    assert 0 < fit.bytes_per_second < 1e15
    assert fit_points(odd[:1]) == ()


def test_where_bytes_cost_nothing_there_is_no_rate() -> None:
    """Each read takes 4 ms whatever its size: `a` says all, and B is only a stand-in."""
    free = [IoPoint(s, 8, s / 4e-3, (s / 4e-3,), {"p50": 1, "p99": 1}) for s in SIZES]
    free[2] = IoPoint(SIZES[2], 8, SIZES[2] / 3.9e-3, (1.0,), {"p50": 1, "p99": 1})
    (fit,) = fit_points(free)
    assert fit.per_read_ns == pytest.approx(4e6, rel=0.03)
    assert not has_rate(fit, free)
    known = points(2500.0, 3e9)
    assert has_rate(fit_points(known)[0], known)
    sweep = Sweep(complete=True)
    sweep.ours = {
        (p.read_bytes, 8): [make_result(p.read_bytes, 8, p.bytes_per_second)] for p in free
    }
    text = report.text(sweep, make_profile(make_target(), sweep, None))
    (line,) = [line for line in text.splitlines() if line.startswith("x8")]
    assert line.split()[2] == "-"


@pytest.mark.parametrize(
    ("late_rates", "passes", "expected"),
    [
        ((1.0, 1.0, 1.0), (1.0, 1.0), ""),  # t = a + S/B
        ((1.0, 1.0, 1.0), (1.0, 5.0), ""),  # busy in turns, and the medians hold
        ((1.0, 0.4, 1.0), (1.0, 1.3), ""),  # a disk of another law
        ((1.0, 0.4, 1.0), (1.0, 1.8), "passes differ 1.8-fold"),
        ((1.0, 0.4, 1.0), (1.0,), "one pass does not say why"),
    ],
)
def test_a_busy_machine_is_told_from_a_disk_of_another_law(
    late_rates: tuple[float, ...], passes: tuple[float, ...], expected: str
) -> None:
    sweep = Sweep(complete=True)
    for point, share in zip(points(2500.0, 3e9), late_rates, strict=True):
        sweep.ours[point.read_bytes, 32] = [
            make_result(point.read_bytes, 32, point.bytes_per_second * share * factor)
            for factor in passes
        ]
    found = reason_to_doubt(make_profile(make_target(), sweep, None))
    if expected:
        assert expected in found
        assert "the fit of 32 threads is " in found
    else:
        assert found == ""


def test_what_was_measured_on_a_quiet_machine_is_believed() -> None:
    kept = Path(__file__).parents[2] / "benchmarks" / "results" / "io-vda.json"
    known = json.loads(kept.read_text("utf-8"))["report"]["profile"]
    quiet = Profile.from_json(known, "io-vda.json")
    assert len(quiet.fits) == 8
    assert reason_to_doubt(quiet) == ""


def test_sizes_are_those_that_the_file_has_room_for() -> None:
    sizes, left_out = choose_sizes(make_target(4 << 30), None)
    assert (sizes[0], sizes[-1], left_out) == (4096, 4 << 20, "")
    sizes, left_out = choose_sizes(make_target(64 << 20), None)
    assert sizes[-1] == 1 << 20
    assert "2 larger" in left_out
    assert choose_sizes(make_target(), [65536, 4096, 4096])[0] == [4096, 65536]
    assert choose_threads(None)[-1] == 128
    assert choose_threads([32, 1]) == [1, 32]


@pytest.mark.parametrize(
    ("file_bytes", "wanted", "expected"),
    [
        (0, None, "has 0 bytes, too few.* 16 MiB or more"),
        (15 << 20, None, "16 MiB or more, and of 256 MiB"),
        (32 << 20, [4 << 20], "256 MiB or more"),
        (32 << 20, [(1 << 20) + 512], "65 MiB or more"),
        (4 << 30, [1000], "1000 bytes is no size"),
        (4 << 30, [128 << 20], "up to 64MiB"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    file_bytes: int, wanted: list[int] | None, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        choose_sizes(make_target(file_bytes), wanted)


def test_too_many_threads_are_refused() -> None:
    with pytest.raises(UsageError, match="5000 are too many"):
        choose_threads([5000])


def test_targets_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        find_target(tmp_path / "absent")
    with pytest.raises(NotACheckpoint, match="is no converted model"):
        find_target(tmp_path)
    with pytest.raises(UsageError, match="neither a file nor a block device"):
        find_target(Path("/dev/null"))
    (tmp_path / "ffn.bundles").write_bytes(bytes(8192))
    assert find_target(tmp_path).path.name == "ffn.bundles"
    assert find_target(tmp_path).file_bytes == 8192


@pytest.mark.parametrize(("direct", "refused"), [("0", True), ("1", False)])
def test_a_file_that_is_read_for_us_through_the_cache_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: str, refused: bool
) -> None:
    (tmp_path / "loop0" / "loop").mkdir(parents=True)
    (tmp_path / "loop0" / "loop" / "dio").write_text(direct + "\n")
    monkeypatch.setattr(target, "find_block_device", lambda path: tmp_path / "loop0")
    (tmp_path / "file").write_bytes(b"x")
    if refused:
        with pytest.raises(BenchmarkInvalid, match="loop device"):
            find_target(tmp_path / "file")
    else:
        assert find_target(tmp_path / "file").file_bytes == 1


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x")

    def refuse(self: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ReadFailed, match="Permission denied"):
        find_target(path)


def test_network_usb_and_small_files_are_said() -> None:
    assert make_target().remarks == []
    assert "network file system (nfs4)" in make_target(kind="network", filesystem="nfs4").remarks[0]
    assert "USB" in make_target(kind="usb").remarks[0]
    assert "only 64 MiB" in make_target(64 << 20).remarks[0]


def pretend_device(monkeypatch: pytest.MonkeyPatch, rates: Any) -> list[tuple[int, int]]:
    """A device that answers with `rates(size, threads, call number)`; returns what was asked."""
    asked: list[tuple[int, int]] = []

    def answer(path: Path, size: int, threads: int, *_: Any, **__: Any) -> ProbeResult:
        asked.append((size, threads))
        return make_result(size, threads, rates(size, threads, len(asked)))

    monkeypatch.setattr(probe, "measure", answer)
    monkeypatch.setattr(probe, "forget", lambda path: None)
    monkeypatch.setattr(probe, "check_not_cached", lambda path: None)
    return asked


def test_passes_go_round_and_a_device_that_gets_hot_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend_device(monkeypatch, lambda size, threads, n: 1e9 * (0.9 if n > 4 else 1.0))
    settings = Settings((4096, 16384), (1, 32), 0.1, 3)
    sweep = run_sweep(make_target(), settings, lambda text: None)
    assert asked == [(4096, 1), (4096, 32), (16384, 1), (16384, 32)] * 3
    assert sweep.complete
    assert sweep.proven
    assert sweep.pass_ratios() == pytest.approx([1.0, 0.9, 0.9])
    profile = make_profile(make_target(), sweep, None)
    assert [point.samples for point in profile.points] == [(1e9, 9e8, 9e8)] * 4
    assert profile.throughput(16384, 32) == pytest.approx(9e8)
    written = report.text(sweep, profile)
    assert "100 90 90 - slower and slower" in written
    assert "last pass to first: 90 %" in written


def test_an_interruption_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(size: int, threads: int, n: int) -> float:
        if n == 6:
            raise KeyboardInterrupt
        return 1e9

    pretend_device(monkeypatch, rates)
    sweep = run_sweep(make_target(), Settings(SIZES, (1,), 0.1, 5), lambda text: None)
    assert not sweep.complete
    assert [len(results) for results in sweep.ours.values()] == [2, 2, 1]
    profile = make_profile(make_target(), sweep, None)
    assert not profile.complete
    assert Profile.from_json(profile.to_json(), "x") == profile
    pretend_device(monkeypatch, lambda size, threads, n: rates(size, threads, 6))
    with pytest.raises(KeyboardInterrupt):
        run_sweep(make_target(), Settings(SIZES, (1,), 0.1, 5), lambda text: None)


def test_fio_stands_beside_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    asked = pretend_device(monkeypatch, lambda size, threads, n: order.append("ours") or 1e9)

    def beside(fio: str, path: Path, size: int, threads: int, seconds: float) -> FioResult:
        order.append("fio")
        return FioResult(size, threads, 8e8, {"p50": 1})

    monkeypatch.setattr(io_sweep, "run_fio", beside)
    settings = Settings((4096,), (8, 16, 64), 0.1, 2, "fio")
    assert settings.fio_places == [(4096, 16)]
    sweep = run_sweep(make_target(), settings, lambda text: None)
    first, second = ["ours", "ours", "ours", "fio", "ours"], ["ours", "ours", "fio", "ours", "ours"]
    assert order == first + second, "the second place is measured beside fio, by turns"
    assert len(asked) == 8
    (row,) = report.beside_fio(sweep)
    assert row["ours_to_fio"] == row["spread_to_fio"] == pytest.approx(1.25)
    assert "1.250" in report.text(sweep, make_profile(make_target(), sweep, None))


def test_fio_that_fails_is_said_once_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    pretend_device(monkeypatch, lambda size, threads, n: 1e9)
    monkeypatch.setattr(io_sweep, "run_fio", lambda *_: calls.append(1) or "fio failed: why")
    sweep = run_sweep(make_target(), Settings((4096,), (32,), 0.1, 3, "fio"), lambda text: None)
    assert (sweep.fio_problem, len(calls), len(sweep.ours[4096, 32])) == ("fio failed: why", 1, 3)


FIO_REPORT = {
    "jobs": [{"read": {
        "bw_bytes": 1234,
        "clat_ns": {"mean": 5.5, "max": 9, "percentile": {
            "50.000000": 1, "90.000000": 2, "99.000000": 3, "99.900000": 4}},
    }}]
}  # fmt: skip


def test_fios_report_is_read() -> None:
    found = parse_report("note: something\n" + json.dumps(FIO_REPORT), 4096, 32)
    assert isinstance(found, FioResult)
    assert found.bytes_per_second == 1234
    assert found.latency_ns == {
        "mean": 5, "p50": 1, "p90": 2, "p99": 3, "p99.9": 4, "max": 9
    }  # fmt: skip
    for text in ("", "{}", '{"jobs": []}', "{"):
        assert "not understood" in str(parse_report(text, 4096, 32))


def test_fio_is_asked_for_the_same_reads(tmp_path: Path) -> None:
    command = fio_command("fio", tmp_path / "a:b", 4096, 32, 0.5)
    assert f"--filename={tmp_path}/a\\:b" in command
    assert {"--numjobs=32", "--direct=1", "--rw=randread", "--readonly"} <= set(command)
    assert {"--runtime=500ms", "--bssplit=4096/100:4194304/0"} <= set(command)
    assert "fio did not run" in str(run_fio(str(tmp_path / "none"), tmp_path, 4096, 1, 0.1))


def test_a_fio_that_fails_gives_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(returncode=1, stdout="", stderr="first\nno such engine\n")
    monkeypatch.setattr(fio.subprocess, "run", lambda *_, **__: done)
    assert run_fio("fio", Path("/x"), 4096, 1, 0.1) == "fio failed: no such engine"


def test_the_report_is_plain_and_the_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sweep = Sweep(complete=True)
    for size in SIZES:
        for threads in (1, 32):
            rate = size * 1e9 / (80_000 / threads + size / 2)
            sweep.ours[size, threads] = [make_result(size, threads, rate)] * 5
    profile = make_profile(make_target(), sweep, None)
    found = json.loads(json.dumps(report.report(make_target(), sweep, profile)))
    assert found["complete"]
    assert found["points"][0]["latency_ns"]["n"] == 5000
    assert found["points"][0]["latency_ns"]["bins_ns"][0][1] == 5000
    assert found["best_threads"]["4096"] == 32
    assert Profile.from_json(found["profile"], "x") == profile
    paths = plots.draw(profile, sweep.pass_ratios(), tmp_path)
    assert [path.name for path in paths] == ["throughput.png", "curves.png", "passes.png"]
    assert all(path.stat().st_size > 5000 for path in paths)
