"""How many threads compute."""

from __future__ import annotations

import os

import psutil
import pytest

from flashllm.system import processors
from flashllm.system.processors import THREADS_VARIABLE, compute_threads, usable_processors


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("usable", "cores", "expected"), [(8, 4, 4), (2, 4, 2), (8, None, 8), (None, 3, 3)]
)
def test_one_for_each_core_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, usable: int | None, cores: int | None, expected: int
) -> None:
    monkeypatch.setattr(processors, "usable_processors", lambda: usable)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: cores)
    assert compute_threads() == expected


@pytest.mark.parametrize("told", ["3", " 3 ", "3,1"])
def test_a_number_may_be_told(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, told)
    assert compute_threads() == 3


@pytest.mark.parametrize("told", ["", "0", "-1", "many", "²"])
def test_what_is_no_number_tells_nothing(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    expected = compute_threads()
    monkeypatch.setenv(THREADS_VARIABLE, told)
    assert compute_threads() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_those_of_this_process_count() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_processors() == 1
        assert compute_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)
