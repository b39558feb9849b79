"""`benchmarks.ceilings`: which ceilings, in what order, and what the runs come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ceilings
from benchmarks.own_command import CommandError
from flashllm.errors import UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.planning.shape_estimate import Weights
from flashllm.units import MIB


class Machine:
    """In the place of flashllm: faster with more memory, each round a little faster."""

    def __init__(self) -> None:
        self.smallest_bytes = 100 * MIB
        self.over_bytes = 0
        self.asked: list[tuple[str, ...]] = []
        self.stop_after = 99
        self.refused_below = 0

    def ask(self, *arguments: str) -> dict[str, Any]:
        self.asked.append(arguments)
        if arguments[0] == "plan":
            return {"plan": {"smallest_bytes": self.smallest_bytes}}
        runs = sum(call[0] == "bench" for call in self.asked)
        if runs > self.stop_after:
            raise KeyboardInterrupt
        ceiling = int(arguments[arguments.index("--memory") + 1])
        if ceiling < self.refused_below:
            raise CommandError("too small | here", 71)
        speed = ceiling / MIB + runs / 100
        return {
            "summary": {
                "decode": {"tokens_per_second": {"median": speed}},
                "flash": {"bytes_read_per_token": 2e6},
                "cache": {"hit_rate": 0.75, "window": 5},
                "memory": {"rss_peak_bytes": ceiling + self.over_bytes},
                "bound": {"share": 0.7},
                "parts": {"shares": {"manage": 0.015}},
                "same_tokens": True,
            }
        }


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(ceilings, "ask", found.ask)
    return found


@pytest.fixture
def fractions(sparse_model: Path) -> str:
    """Two ceilings above the smallest, one below; the model itself is small."""
    mib = Weights.of(read_manifest(sparse_model).spec).total / MIB
    return f"{round(300 / mib)},smallest,{round(200 / mib)},1/2"


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = ceilings.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_ceilings_go_by_turns_and_medians_are_kept(
    sparse_model: Path, fractions: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(sparse_model), "--fractions", fractions, "--rounds", "3", "--ids", "5,6"]
    code, found = run([*arguments, "--select", "predicted"], capsys)
    assert code == 0
    assert found["complete"] is True
    most, some, smallest, below = found["rows"]
    assert most["ceiling_bytes"] > some["ceiling_bytes"] > smallest["ceiling_bytes"] == 124 * MIB
    assert "below the smallest that works, 124 MiB" in below["problem"]
    assert below["tokens_per_second"] is None
    measured = [call for call in machine.asked if call[0] == "bench"]
    order = [int(call[call.index("--memory") + 1]) for call in measured]
    assert order == [row["ceiling_bytes"] for row in (most, some, smallest)] * 3
    assert all(call[-2:] == ("--select", "predicted") for call in machine.asked)
    assert all("5,6" in call for call in measured)
    assert {row["model"] for row in found["rows"]} == {"source, f32"}
    speed = smallest["tokens_per_second"]
    assert speed["samples"] == pytest.approx([124.03, 124.06, 124.09])
    assert speed["median"] == pytest.approx(124.06)
    assert smallest["within_ceiling"] is True
    assert smallest["manage_share"]["median"] == 0.015
    assert found["header"]["settings"]["passed_on"] == ["--select", "predicted"]


def test_a_process_above_its_ceiling_is_told_and_an_error(
    sparse_model: Path, fractions: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.over_bytes = 1
    arguments = [str(sparse_model), "--fractions", fractions, "--rounds", "1"]
    assert ceilings.main(arguments) == 1
    said = capsys.readouterr()
    assert said.out.count("ABOVE THE CEILING") == 3
    assert "more memory than its ceiling" in said.err


def test_a_ceiling_that_fails_stops_no_other(
    sparse_model: Path, fractions: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.refused_below = 150 * MIB
    arguments = [str(sparse_model), "--fractions", fractions, "--rounds", "2"]
    assert ceilings.main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "| smallest | failed: too small / here |" in lines[4]
    assert len({line.count("|") for line in lines}) == 1
    measured = [call for call in machine.asked if call[0] == "bench"]
    assert len(measured) == 2 + 2 + 1


def test_an_interruption_keeps_what_there_is(
    sparse_model: Path, fractions: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.stop_after = 4
    code, found = run([str(sparse_model), "--fractions", fractions], capsys)
    assert code == 130
    assert found["complete"] is False
    counts = [row["tokens_per_second"]["n"] for row in found["rows"][:3]]
    assert counts == [2, 1, 1]


@pytest.mark.usefixtures("machine")
def test_the_curve_is_drawn(
    sparse_model: Path, fractions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curve.png"
    arguments = [str(sparse_model), str(sparse_model), "--fractions", fractions, "--rounds", "2"]
    assert ceilings.main([*arguments, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.count("| smallest |") == 2


@pytest.mark.parametrize("text", ["", "half", "0", "1/0", "-1/2", "1/2,,1", "1e9"])
def test_what_is_no_part_of_a_model_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no part of a model"):
        ceilings.parse_fractions(text)


def test_parts_of_a_model() -> None:
    assert ceilings.parse_fractions("3/4, 0.5,smallest,.375,2") == [
        "3/4", "0.5", "smallest", ".375", "2",
    ]  # fmt: skip
