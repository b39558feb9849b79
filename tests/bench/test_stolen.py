"""Steal time: what `/proc/stat` says of it, what it does not, and what of it is spoken of."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm.bench import steal_time
from flashllm.bench.steal_time import (
    ProcessorTime,
    format_steal_share,
    most_stolen,
    stolen_warning,
)

BEFORE = "cpu  100 10 40 700 50 0 5 95 60 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
AFTER = "cpu  140 10 60 730 60 0 5 195 90 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n"


def time_of(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessorTime:
    path = tmp_path / "stat"
    path.write_text(text)
    monkeypatch.setattr(steal_time, "_STAT", path)
    return ProcessorTime.now()


def test_the_share_is_of_all_processors_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time_of(BEFORE, tmp_path, monkeypatch)
    assert before == ProcessorTime(1000, 95)  # what guests had is in what users had
    after = time_of(AFTER, tmp_path, monkeypatch)
    assert after.stolen_share_since(before) == pytest.approx(100 / 200)


@pytest.mark.parametrize(
    "text", ["", "\n", "cpu 1 2 3 4\n", "cpu a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8 9\n"]
)
def test_where_the_system_does_not_tell_nothing_is_said(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = time_of(text, tmp_path, monkeypatch)
    after = time_of(AFTER, tmp_path, monkeypatch)
    assert after.stolen_share_since(nothing) is None
    assert nothing.stolen_share_since(after) is None
    monkeypatch.setattr(steal_time, "_STAT", tmp_path / "absent")
    assert ProcessorTime.now() == nothing
    assert format_steal_share(nothing.stolen_share_since(nothing)) == "unknown"


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (ProcessorTime(1000, 95), None),  # no tick went by
        (ProcessorTime(1100, 90), 0.0),  # moved to another host
        (ProcessorTime(1010, 115), 1.0),
    ],
)
def test_what_cannot_be_is_not_said(later: ProcessorTime, expected: float | None) -> None:
    assert later.stolen_share_since(ProcessorTime(1000, 95)) == expected


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_the_kernels_own_counts_are_read() -> None:
    found = ProcessorTime.now()
    assert found.ticks > 0
    assert 0 <= found.stolen_ticks <= found.ticks


def test_only_what_is_much_is_spoken_of() -> None:
    assert stolen_warning([]) == stolen_warning([None, 0.0, 0.05]) == ""
    said = stolen_warning([None, 0.0, 0.06, 0.91])
    assert said.startswith("2 of 4 runs lost more than 5% of the processors' time")
    assert "(91% at most)" in said
    assert most_stolen([None, 0.2, 0.1]) == 0.2
    assert most_stolen([None]) is None
