"""`flashllm bench io` from its arguments to its exit code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm import core
from flashllm.bench import page_cache
from flashllm.bench.disk import fit, probe
from flashllm.bench.tokens import machine_rates
from flashllm.cli.main import main
from flashllm.core.numpy_twin.latency import BINS, Latencies
from flashllm.errors import FlashllmError
from flashllm.hardware import machine_profile as profiles
from flashllm.hardware.staleness import staleness
from tests.support.profiles import RATES

REAL_DOUBT = fit.reason_to_doubt
FAST = ["--sizes", "4KiB,16KiB", "--threads", "1,32", "--seconds", "0.02", "--runs", "2"]

pytestmark = pytest.mark.skipif(core.NAME != "native", reason="the twin reads one at a time")


@pytest.fixture
def disk_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is just large enough, and a cache of its own."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    path = tmp_path / "data.bin"
    np.random.default_rng(4).integers(0, 256, 16 << 20, dtype=np.uint8).tofile(path)
    try:
        probe.probe(path, 4096, 1, 0.01, repeats=1)
    except FlashllmError:
        pytest.skip("temporary files lie where nothing can be measured")
    # So short a sweep may look busy, and is here for other things.
    monkeypatch.setattr(fit, "reason_to_doubt", lambda profile: "")
    return path


@pytest.fixture
def busy_file(disk_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose larger reads are the slowest, and the second pass faster than the first."""
    asked: list[int] = []

    def measure(path: Path, size: int, threads: int, *_: Any, **__: Any) -> probe.ProbeResult:
        asked.append(size)
        rate = 4e12 / size * (1 if len(asked) <= 4 else 5)
        latencies = Latencies(np.ones(BINS, np.uint64))
        return probe.ProbeResult(size, threads, 100, 10**6, rate, 1.0, latencies, True)

    monkeypatch.setattr(fit, "reason_to_doubt", REAL_DOUBT)
    monkeypatch.setattr(probe, "measure", measure)
    return disk_file


def bench(*arguments: Any) -> int:
    return main(["bench", "io", *map(str, arguments), "--no-machine"])


def test_the_disk_is_measured_and_its_profile_kept(
    disk_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(disk_file, *FAST, "--no-fio") == 0
    shown = capsys.readouterr()
    for expected in ("MB/s", "x32", "16 KiB", "t = a + S/B", "passes, % of the first", "profile:"):
        assert expected in shown.out
    if page_cache.device_bytes() is not None:
        assert "proven uncached" in shown.out
    assert "only 16 MiB" in shown.err
    profile = profiles.find(disk_file)
    assert profile is not None
    assert len(profile.points) == 4
    assert profile.complete


def test_the_report_is_one_object(disk_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = disk_file.with_name("here.json")
    assert bench(disk_file, *FAST, "--no-fio", "--json", "--profile", elsewhere) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["header"]["settings"]["sizes"] == [4096, 16384]
    assert report["profile"]["points"][0]["samples"]
    assert report["points"][0]["latency_ns"]["bins_ns"]
    assert report["profile_file"] == str(elsewhere)
    assert len(profiles.load(elsewhere).points) == 4
    assert profiles.find(disk_file) is None  # not in the cache


def test_a_stale_profile_is_replaced(disk_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(disk_file, *FAST, "--no-fio") == 0
    known = profiles.find(disk_file)
    assert known is not None
    assert staleness(known) == []
    profiles.save(dataclasses.replace(known, date="2020-01-01"))
    assert bench(disk_file, *FAST[2:], "--sizes", "4KiB", "--no-fio") == 0
    assert "kept as it is" not in capsys.readouterr().err
    found = profiles.find(disk_file)
    assert found is not None
    assert len(found.points) < len(known.points)


def test_a_better_profile_is_not_replaced(
    disk_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(disk_file, *FAST, "--no-fio") == 0
    known = profiles.find(disk_file)
    assert bench(disk_file, *FAST[2:], "--sizes", "4KiB", "--no-fio") == 0
    assert "knows more sizes" in capsys.readouterr().err
    measure, calls = probe.measure, []

    def interrupt(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(probe, "measure", interrupt)
    assert bench(disk_file, *FAST, "--no-fio") == 130
    shown = capsys.readouterr()
    assert "ENDED EARLY" in shown.out
    assert "ended early" in shown.err
    assert profiles.find(disk_file) == known


def test_a_sweep_of_few_threads_is_not_kept(
    disk_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan would choose among those, and read with fewer threads than without a profile."""
    few = ["--threads", "1,4", *FAST[:2], *FAST[4:], "--no-fio"]
    assert bench(disk_file, *few) == 0
    shown = capsys.readouterr()
    assert "x4" in shown.out
    assert "profile:" not in shown.out
    assert "of more threads than 4 it knows nothing" in shown.err
    assert "--threads up to 32" in shown.err
    assert profiles.find(disk_file) is None
    elsewhere = disk_file.with_name("here.json")
    assert bench(disk_file, *few, "--profile", elsewhere) == 0
    assert len(profiles.load(elsewhere).points) == 4


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_profile_of_a_busy_machine_is_not_kept(
    busy_file: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    more = ["--json"] if form == "json" else []
    assert bench(busy_file, *FAST, "--no-fio", *more) == 74
    shown = capsys.readouterr()
    said = shown.err.replace("\n", " ")
    for expected in (
        "passes differ 5.0-fold", "go by the defaults (32 threads, gaps of 4.0 KiB)", "idle",
        "--keep-doubtful",
    ):  # fmt: skip
        assert expected in said
    if form == "json":
        report = json.loads(shown.out)
        assert report["profile_file"] is None
        assert "the profile is not kept" in " ".join(report["remarks"])
        assert len(report["points"]) == 4
    else:
        assert "16 KiB" in shown.out
        assert "profile:" not in shown.out
    assert profiles.find(busy_file) is None


def test_the_profile_before_a_busy_machine_stays(
    busy_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(busy_file, *FAST, "--no-fio", "--keep-doubtful") == 0
    assert "passes differ" in capsys.readouterr().err
    known = profiles.find(busy_file)
    assert known is not None
    known = dataclasses.replace(known, date="2020-02-03")  # so old that any good one replaces it
    profiles.save(known)
    monkeypatch.setattr(fit, "reason_to_doubt", lambda profile: "passes differ")
    assert bench(busy_file, *FAST, "--no-fio") == 74
    assert "plans and reads go by the one of 2020-02-03 as before" in capsys.readouterr().err
    assert profiles.find(busy_file) == known


def test_a_doubtful_profile_goes_where_it_is_asked_for(
    busy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = busy_file.with_name("here.json")
    assert bench(busy_file, *FAST, "--no-fio", "--profile", elsewhere) == 0
    assert "passes differ" in capsys.readouterr().err
    assert len(profiles.load(elsewhere).points) == 4
    assert profiles.find(busy_file) is None


def test_the_profile_to_read_is_not_written_over(
    disk_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLASHLLM_PROFILE is for commands that plan; here --profile is an output."""
    given = disk_file.with_name("given.json")
    given.write_text("somebody's")
    monkeypatch.setenv("FLASHLLM_PROFILE", str(given))
    assert bench(disk_file, *FAST, "--no-fio") == 0
    assert given.read_text() == "somebody's"
    assert profiles.find(disk_file) is not None


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_profile_that_cannot_be_written_loses_no_figures(
    disk_file: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    place = disk_file / "profile.json"  # below a file
    more = ["--json"] if form == "json" else []
    assert bench(disk_file, *FAST, "--no-fio", "--profile", place, *more) == 73
    shown = capsys.readouterr()
    assert "cannot be written" in shown.err
    if form == "json":
        report = json.loads(shown.out)
        assert (report["profile_file"], report["interrupted"]) == (None, False)
        assert len(report["points"]) == 4
    else:
        assert "16 KiB" in shown.out
        assert "profile:" not in shown.out


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_interruption_of_memory_and_kernels_is_told(
    disk_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(machine_rates, "measure_rates", interrupt)
    more = ["--json"] if form == "json" else []
    assert main(["bench", "io", str(disk_file), *FAST, "--no-fio", *more]) == 130
    shown = capsys.readouterr()
    assert "interrupted" in shown.err
    if form == "json":
        report = json.loads(shown.out)
        assert (report["interrupted"], report["complete"]) == (True, True)
        assert report["profile"]["rates"] is None
    else:
        assert "; memory and kernels not measured" in shown.out
        assert "ENDED EARLY" not in shown.out


def test_no_memory_for_memory_and_kernels(
    disk_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhaust() -> Any:
        raise MemoryError

    monkeypatch.setattr(machine_rates, "measure_rates", exhaust)
    assert main(["bench", "io", str(disk_file), *FAST, "--no-fio"]) == 0
    assert "not measured: out of memory" in capsys.readouterr().err
    profile = profiles.find(disk_file)
    assert profile is not None
    assert profile.rates is None


def test_a_damaged_profile_is_replaced(disk_file: Path) -> None:
    assert bench(disk_file, *FAST, "--no-fio") == 0
    known = profiles.find(disk_file)
    assert known is not None
    profiles.cache_path(known.device).write_text("{")
    assert profiles.find(disk_file) is None
    assert bench(disk_file, *FAST, "--no-fio") == 0
    assert profiles.find(disk_file) is not None


def test_without_fio_that_is_said(
    disk_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert bench(disk_file, *FAST) == 0
    assert "fio is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "more", "code", "expected"),
    [
        ("absent", (), 66, "no such file"),
        ("x" * 300, (), 66, "no such file"),
        (".", (), 65, "is no converted model"),
        ("small", (), 2, "16 MiB or more"),
        ("/dev/null", (), 2, "neither a file"),
        ("small", ("--sizes", "1000"), 2, "no size of a direct read"),
        ("small", ("--seconds", "0"), 2, "no time"),
        ("small", ("--threads", "0"), 2, "--threads"),
        ("small", ("--keep-doubtful=yes",), 2, "--keep-doubtful"),
        ("small", ("--json", "--keep-doubtful"), 2, "16 MiB or more"),
        ("absent", ("--json", "--keep-doubtful"), 66, "no such file"),
    ],
)
def test_bad_input_is_refused_with_a_reason(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    target: str,
    more: tuple[str, ...],
    code: int,
    expected: str,
) -> None:
    (tmp_path / "small").write_bytes(bytes(8192))
    assert bench(tmp_path / target, *more) == code
    shown = capsys.readouterr()
    assert expected in shown.err
    assert shown.out == ""


def test_a_run_that_was_cached_exits_with_a_reason(
    disk_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The device is said to have been asked for nothing.
    monkeypatch.setattr(page_cache, "device_bytes", lambda: 0)
    assert bench(disk_file, *FAST, "--no-fio") == 74
    shown = capsys.readouterr()
    assert "the device was asked for 0" in shown.err
    assert shown.out == ""
    assert profiles.find(disk_file) is None


def test_a_quick_profile_is_kept_until_a_whole_one_is_there(
    disk_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(disk_file, "--quick") == 0
    shown = capsys.readouterr()
    assert "quick profile: random direct reads, 2 passes" in shown.out
    assert "`flashllm bench io` measures well, and replaces it" in shown.out
    quick = profiles.find(disk_file)
    assert quick is not None
    assert quick.quick
    assert {point.threads for point in quick.points} == {1, 8, 32}
    assert bench(disk_file, *FAST, "--no-fio") == 0
    whole = profiles.find(disk_file)
    assert whole is not None
    assert not whole.quick
    assert not profiles.quick_path(whole.device).exists()
    capsys.readouterr()
    assert bench(disk_file, "--quick") == 0
    assert "so the quick profile is not kept" in capsys.readouterr().err
    assert profiles.find(disk_file) == whole


def test_a_quick_profile_as_json_and_elsewhere(
    disk_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = disk_file.with_name("here.json")
    assert bench(disk_file, "--quick", "--json", "--profile", elsewhere) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["profile"]["quick"] is True
    assert report["profile_file"] == str(elsewhere)
    assert profiles.load(elsewhere).quick
    assert profiles.find(disk_file) is None


def test_rates_of_the_machine_stay_where_they_cannot_be_measured_again(
    disk_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = RATES
    asked: list[int] = []

    def measure_rates(**settings: Any) -> Any:
        asked.append(settings["bytes_most"])
        settings["before_each"](0, 1)
        return rates

    monkeypatch.setattr(machine_rates, "measure_rates", measure_rates)
    assert main(["bench", "io", str(disk_file), "--quick"]) == 0
    found = profiles.find(disk_file)
    assert found is not None
    assert (found.rates, asked) == (rates, [128 << 20])
    assert "memory and kernels" in capsys.readouterr().out
    monkeypatch.setattr("flashllm.system.memory_limit.available_bytes", lambda: 1 << 20)
    assert main(["bench", "io", str(disk_file), "--quick"]) == 0
    assert "memory and kernels were not measured: less than 320 MiB" in capsys.readouterr().err
    found = profiles.find(disk_file)
    assert found is not None
    assert found.rates == rates


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--quick", "--sizes", "4KiB"], "--sizes: a quick profile has its own"),
        (["--background", "--json"], "--background: only keeps the profile"),
        ([], "what to read is missing"),
    ],
)
def test_what_makes_no_sense_together(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "io", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_in_the_background_only_progress_is_said(
    disk_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashllm.cli.bench.quick._become_idle", lambda: None)
    assert bench(disk_file, "--background", "--leave", "1MiB") == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    events = [json.loads(line) for line in shown.err.splitlines()]
    assert events[0]["phase"] == "measuring the disk"
    assert {event["event"] for event in events} == {"phase", "end"}
    found = profiles.find(disk_file)
    assert found is not None
    assert found.quick
