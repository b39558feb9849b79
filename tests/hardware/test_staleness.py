"""Profiles that are no longer true: what is said, what is used."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flashllm import core
from flashllm.cli.commands.doctor import examine
from flashllm.errors import ProfileError
from flashllm.hardware import machine_profile, staleness
from flashllm.hardware.device import describe_device, machine_name
from flashllm.hardware.machine_profile import Profile
from flashllm.hardware.staleness import (
    caution,
    find_profile,
    for_this_machine,
    wants_quick_profile,
)
from tests.support.profiles import DEVICE, RATES, law


def today(days_ago: int = 0) -> str:
    moment = dt.datetime.now(dt.UTC) - dt.timedelta(days=days_ago)
    return moment.isoformat(timespec="seconds")


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """One of this machine, of today; nothing is kept yet."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    return replace(
        law(8e-6, 2e9),
        device=describe_device(tmp_path),
        machine_name=machine_name(),
        date=today(),
        isa=core.Kernels(threads=1).isa,
        io_backend=staleness.current_backend(),
    )


OTHER_CPU = "Another Processor, 3 CPUs, 9 GiB"
STALE = [
    ({"machine_name": OTHER_CPU}, r"another processor .*Another Processor, 3 CPUs; here ", False),
    ({"isa": "vax"}, "with kernels for vax ", False),
    ({"isa": ""}, "by an earlier version", True),
    ({"io_backend": "pigeons"}, r"with reads by pigeons \(here by ", True),
    ({"date": today(91)}, "91 days ago", True),
    ({"date": today(-5)}, "still to come", True),
    ({"date": "yesterday"}, "'yesterday'", True),
]


def test_a_good_profile_is_used_in_silence(good: Profile, tmp_path: Path) -> None:
    assert caution(tmp_path) == ""  # none is kept
    for fresh in (good, replace(good, date=today(90)), replace(good, date=today()[:10])):
        machine_profile.save(fresh)
        assert caution(tmp_path) == ""
        assert find_profile(tmp_path) == fresh
    file = machine_profile.save(good, tmp_path / "file.json")
    assert caution(tmp_path, file) == ""


def test_other_memory_is_the_same_machine(good: Profile, tmp_path: Path) -> None:
    processor = good.machine_name.rpartition(", ")[0]
    machine_profile.save(replace(good, machine_name=f"{processor}, 5 GiB"))
    assert caution(tmp_path) == ""


@pytest.mark.parametrize(("changes", "expected", "rates_used"), STALE)
def test_a_kept_one_that_is_stale(
    good: Profile, tmp_path: Path, changes: dict[str, str], expected: str, rates_used: bool
) -> None:
    stale = replace(good, **changes)  # type: ignore[arg-type]
    machine_profile.save(stale)
    words = caution(tmp_path)
    assert re.search(expected, words)
    assert words.startswith(f"the profile of {good.device.name} was measured ")
    assert words.endswith("measure again with `flashllm bench io`")
    assert ("only its reads are used" in words) is not rates_used
    assert len(words.splitlines()) == 1
    used = find_profile(tmp_path)
    assert used is not None
    assert used.points == good.points
    assert used.rates == (RATES if rates_used else None)


@pytest.mark.parametrize(("changes", "expected"), [case[:2] for case in STALE])
def test_a_file_that_was_asked_for_is_used_whole(
    good: Profile, tmp_path: Path, changes: dict[str, str], expected: str
) -> None:
    stale = replace(good, **changes)  # type: ignore[arg-type]
    file = machine_profile.save(stale, tmp_path / "file.json")
    words = caution(tmp_path, file)
    assert words.startswith(f"{file} was measured ")
    assert re.search(expected, words)
    assert words.endswith("; it is used all the same")
    assert find_profile(tmp_path, file) == stale


def test_a_file_of_another_device(good: Profile, tmp_path: Path) -> None:
    file = machine_profile.save(replace(good, device=DEVICE), tmp_path / "file.json")
    assert caution(tmp_path, file).startswith(
        f"{file} was measured of a device of the tests, and {tmp_path} lies on {good.device.name}"
    )
    with pytest.raises(ProfileError):
        caution(tmp_path, tmp_path / "none.json")


@pytest.mark.parametrize("damage", ["version", "cut", "device"])
def test_one_that_cannot_be_used_is_not(good: Profile, tmp_path: Path, damage: str) -> None:
    place = machine_profile.save(good)
    if damage == "version":
        place.write_text(json.dumps({**good.to_json(), "version": 0}))
    elif damage == "cut":
        place.write_text(place.read_text()[:-9])
    else:
        machine_profile.save(replace(good, device=DEVICE), place)
    words = caution(tmp_path)
    assert "not used" in words
    assert "`flashllm bench io`" in words
    assert find_profile(tmp_path) is None


def test_profiles_of_earlier_versions_open(good: Profile, tmp_path: Path) -> None:
    values = good.to_json()
    del values["isa"], values["io_backend"]
    file = tmp_path / "file.json"
    file.write_text(json.dumps(values))
    assert machine_profile.load(file) == replace(good, isa="", io_backend="")


def test_what_no_kernel_can_tell_is_no_other_machine(
    good: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_ISA", "vax")
    assert staleness.current_isa() == ""
    assert for_this_machine(good) == good


def test_the_doctor_says_so_once(good: Profile, tmp_path: Path) -> None:
    machine_profile.save(replace(good, date=today(400)))
    model = tmp_path / "model"
    model.mkdir()
    facts = examine(model)
    assert "400 days ago" in facts["model"]["profile_problem"]
    assert len([words for words in facts["warnings"] if "400 days ago" in words]) == 1


def test_a_quick_profile_is_wanted_until_something_better_is_there(
    good: Profile, tmp_path: Path
) -> None:
    assert wants_quick_profile(tmp_path)
    quick = replace(good, quick=True)
    machine_profile.save(quick)
    assert not wants_quick_profile(tmp_path)
    assert caution(tmp_path) == ""
    machine_profile.save(replace(quick, rates=None))
    assert wants_quick_profile(tmp_path)  # it knows the disk alone
    machine_profile.save(replace(quick, date=today(91)))
    assert wants_quick_profile(tmp_path)
    machine_profile.note_failure(tmp_path)
    assert not wants_quick_profile(tmp_path)  # not again and again in vain
    (marker,) = (tmp_path / "home" / "profiles").glob("*.failed")
    os.utime(marker, (1e9, 1e9))
    assert wants_quick_profile(tmp_path)
    machine_profile.save(replace(good, date=today(91), rates=None))
    assert not wants_quick_profile(tmp_path)  # never instead of what bench io has measured
