"""The profile: what follows from its points, its file, and files that are no profile."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from flashllm.errors import CannotCreate, ProfileError
from flashllm.hardware import machine_profile as profiles
from flashllm.hardware.curves import Fit, IoPoint, MachineRates
from flashllm.hardware.device import DeviceIdentity, describe_device
from flashllm.hardware.machine_profile import Profile

SIZES = tuple(4096 << i for i in range(11))
THREADS = (1, 2, 8, 32)
DEVICE = DeviceIdentity("vda-0123", "vda", "ext4", "rw", "nvme")
RATES = MachineRates({1: 1e10, 2: 1.5e10}, {"f32": 9e9}, {"f32": 8e9}, 1e5, 2e5)


def linear_profile(per_read_ns: float = 8000.0, rate: float = 2e9, **changes: Any) -> Profile:
    """A device for which t = a/threads + S/B holds exactly."""
    points, fits = [], []
    for threads in THREADS:
        a = per_read_ns / threads
        fits.append(Fit(threads, a, rate, 0.0))
        for size in SIZES:
            speed = size / (a * 1e-9 + size / rate)
            points.append(IoPoint(size, threads, speed, (speed,) * 5, {"p50": 10}))
    values: dict[str, Any] = {
        "device": DEVICE,
        "machine_name": "a machine",
        "date": "2026-01-01",
        "direct": True,
        "points": tuple(points),
        "fits": tuple(fits),
        "sequential_bytes_per_second": rate,
        "rates": RATES,
    }
    return Profile(**{**values, **changes})


@pytest.mark.parametrize("size", [512, 4096, 5000, 16384, 100_000, 4 << 20, 100 << 20])
@pytest.mark.parametrize("threads", THREADS)
def test_a_linear_device_is_known_at_every_size(size: int, threads: int) -> None:
    expected = size / (8e-6 / threads + size / 2e9)
    assert linear_profile().throughput(size, threads) == pytest.approx(expected)


def test_between_numbers_of_threads_throughput_lies_between() -> None:
    profile = linear_profile()
    few, between, many = (profile.throughput(16384, threads) for threads in (8, 16, 32))
    assert between == pytest.approx((few + many) / 2)
    assert profile.throughput(16384, 200) == many
    assert linear_profile(points=profile.points[11:22]).throughput(16384, 1) > 0


def test_without_a_fit_the_edges_go_on() -> None:
    profile = linear_profile(fits=())
    smallest, largest = profile.throughput(4096, 1), profile.throughput(4 << 20, 1)
    assert profile.throughput(2048, 1) == pytest.approx(smallest / 2)  # as long as one of 4096
    assert profile.throughput(40 << 20, 1) == pytest.approx(largest)


def test_seconds_of_reads_are_bytes_over_throughput() -> None:
    profile = linear_profile()
    seconds = profile.read_seconds(1000, 1000 * 16384, 32)
    assert seconds == pytest.approx(1000 * (8e-6 / 32 + 16384 / 2e9))
    assert profile.read_seconds(0, 0, 32) == 0.0
    # One read keeps one thread at work, however many there are.
    assert profile.read_seconds(1, 16384, 32) == profile.read_seconds(1, 16384, 1)


def test_the_gap_is_the_break_even() -> None:
    # a × B = 8000 ns × 2 bytes/ns = 16000 bytes at one thread.
    assert linear_profile().gap_bytes(16384, 1) == 16000 // 512 * 512
    assert linear_profile().gap_bytes(16384, 8) == 2000 // 512 * 512
    assert linear_profile(per_read_ns=1e9).gap_bytes(16384, 1) == 64 << 10
    assert linear_profile(per_read_ns=0.0).gap_bytes(16384, 1) == 0


def test_the_best_number_of_threads_is_the_least_that_is_nearly_the_best() -> None:
    assert linear_profile().best_threads(4 << 20) == 1
    assert linear_profile().best_threads(4096) == 32


def test_a_profile_is_written_and_read(tmp_path: Path) -> None:
    path = profiles.save(linear_profile(), tmp_path / "new" / "profile.json")
    assert profiles.load(path) == linear_profile()
    assert [entry.name for entry in path.parent.iterdir()] == ["profile.json"]
    without = linear_profile(rates=None, complete=False)
    assert profiles.load(profiles.save(without, path)) == without


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    values = copy.deepcopy(linear_profile().to_json())
    place: Any = values
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (["version"], 2, "is no profile of version 1"),
        (["unheard_of"], 1, "unknown key 'unheard_of'"),
        (["points"], [], "points: there are none"),
        (["points"], 3, "profile.points: expected a list"),
        (["points", 1, "threads"], 1.5, r"points\[1\].threads: expected int"),
        (["points", 1, "threads"], True, r"points\[1\].threads: expected int"),
        (["points", 1, "read_bytes"], 4096, "occurs twice"),
        (["points", 1, "bytes_per_second"], 0.0, "points.bytes_per_second: a value is not above"),
        (["points", 0, "samples"], ["x"], r"samples\[0\]: expected float"),
        (["points", 0, "latency_ns"], {"p50": None}, "latency_ns.p50: expected int"),
        (["points", 1, "bytes_per_second"], 1e300, "points.bytes_per_second: a value is beyond"),
        (["points", 1, "read_bytes"], 10**19, "points.read_bytes: a value is beyond"),
        (["sequential_bytes_per_second"], 1e-300, "sequential_bytes_per_second: a value is beyond"),
        (["rates", "rows_bytes_per_second", "f32"], 1e-4, "rates: a value is beyond"),
        (["rates", "token_overhead_ns"], 1e19, "an overhead is beyond"),
        (["fits", 0, "per_read_ns"], 1e19, "per_read_ns: a value is beyond"),
        (["fits", 0], 7, "expected an object"),
        (["fits", 0, "per_read_ns"], -1.0, "per_read_ns: a value is negative"),
        (["rates", "dram_bytes_per_second"], {"x": 1.0}, "'x' is no whole number"),
        (["rates", "layer_overhead_ns"], -1.0, "overhead is negative"),
        (["rates", "kernel_bytes_per_second", "f32"], -1.0, "rates: a value is not above"),
        (["device", "kind"], "floppy", "'floppy' is no kind"),
        (["device"], None, "profile.device: expected an object"),
        (["sequential_bytes_per_second"], 10**400, "expected float|too large"),
    ],
)
def test_a_profile_that_does_not_hold_together_is_refused(
    path: list[Any], value: Any, expected: str
) -> None:
    with pytest.raises(ProfileError, match=expected) as refused:
        Profile.from_json(changed(path, value), "here.json")
    assert "here.json" in str(refused.value)
    assert "flashllm bench io" in str(refused.value)


def test_what_is_no_profile_at_all_is_refused(tmp_path: Path) -> None:
    for name, contents in {"text": b"{", "list": b"[]", "nan": b'{"a": NaN}', "none": b""}.items():
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(ProfileError, match=name):
            profiles.load(tmp_path / name)
    with pytest.raises(ProfileError, match="no such file"):
        profiles.load(tmp_path / "absent")
    with pytest.raises(ProfileError, match="no such file"):
        profiles.load(tmp_path)
    with pytest.raises(ProfileError, match="cannot be read"):
        profiles.load(tmp_path / ("long" * 500))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(profiles.FILE_BYTES_MAX + 1)
    with pytest.raises(ProfileError, match="too large to be a profile"):
        profiles.load(tmp_path / "large")
    missing = linear_profile().to_json()
    del missing["date"]
    with pytest.raises(ProfileError, match="'date' is missing"):
        Profile.from_json(missing, "here.json")


def test_where_a_profile_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotCreate, match="--profile"):
        profiles.save(linear_profile(), tmp_path / "file" / "profile.json")


def test_the_kept_profile_of_a_device_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    assert profiles.find(tmp_path) is None
    device = describe_device(tmp_path)
    path = profiles.save(linear_profile(device=device))
    assert path.parent == tmp_path / "home" / "profiles"
    assert profiles.find(tmp_path / ("long" * 500)) is None  # nor is the device known
    found = profiles.find(tmp_path / "not" / "there" / "yet")
    assert found is not None
    assert found.device == device


@pytest.mark.parametrize("damage", ["other device", "cut", "directory"])
def test_a_kept_profile_that_is_not_this_devices_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    path = profiles.save(linear_profile(device=describe_device(tmp_path)))
    if damage == "other device":
        profiles.save(linear_profile(), path)
    elif damage == "cut":
        path.write_text(json.dumps(linear_profile().to_json())[:-10])
    else:
        path.unlink()
        path.mkdir()
    assert profiles.find(tmp_path) is None


def test_a_quick_profile_is_found_where_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    device = describe_device(tmp_path)
    quick = linear_profile(device=device, quick=True)
    place = profiles.save(quick)
    assert place == profiles.quick_path(device)
    assert profiles.find(tmp_path) == quick
    whole = linear_profile(device=device)
    assert profiles.save(whole) == profiles.cache_path(device)
    assert not place.exists()
    profiles.save(quick)
    assert profiles.find(tmp_path) == whole
    profiles.cache_path(device).write_text("{")  # what is damaged is passed over
    assert profiles.find(tmp_path) == quick


def test_nothing_is_chosen_by_a_profile_that_knows_too_little() -> None:
    assert linear_profile().chooses_reads
    assert not linear_profile(quick=True).chooses_reads
    assert not linear_profile(complete=False).chooses_reads


def test_a_profile_of_before_quick_ones_is_a_whole_one() -> None:
    values = linear_profile().to_json()
    del values["quick"]
    assert Profile.from_json(values, "here.json") == linear_profile()
