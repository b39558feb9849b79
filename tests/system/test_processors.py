"""How many threads compute."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from flashllm.system import processors
from flashllm.system.processors import (
    THREADS_VARIABLE,
    compute_threads,
    count_cores,
    usable_processors,
)

LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)


def test_two_processors_of_a_core_count_once(tmp_path: Path) -> None:
    for number, siblings in enumerate(["0,4", "1,5", "2,6", "3,7"] * 2):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert count_cores(range(8), tmp_path) == 4
    assert count_cores([0, 4, 1, 5], tmp_path) == 2
    assert count_cores([0, 1, 2], tmp_path) == 3
    assert count_cores([0, 8], tmp_path) is None


@LINUX
def test_where_the_system_says_nothing_of_cores_processors_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processors, "count_cores", lambda _: None)
    assert compute_threads() == len(os.sched_getaffinity(0))


def test_without_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None if logical else 3)
    assert usable_processors() is None
    assert compute_threads() == 3
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert compute_threads() == 16


@pytest.mark.parametrize("told", ["3", " 3 ", "3,1"])
def test_a_number_may_be_told(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, told)
    assert compute_threads() == 3


@pytest.mark.parametrize("told", ["", "0", "-1", "many", "²"])
def test_what_is_no_number_tells_nothing(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    expected = compute_threads()
    monkeypatch.setenv(THREADS_VARIABLE, told)
    assert compute_threads() == expected


@LINUX
def test_those_of_this_process_count() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_processors() == 1
        assert compute_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)
