"""Commands under their smallest ceilings, and in containers without any."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import memory_ceiling
from benchmarks.containers import Contained, contain
from benchmarks.memory_ceiling import Held, hold
from benchmarks.memory_limit import MemoryLimitError
from flashllm.units import MIB

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@LINUX
@pytest.mark.parametrize("command", ["again"])
def test_a_command_is_held_against_its_smallest_ceiling(
    demo: Path, tmp_path: Path, command: str
) -> None:
    found = hold(command, memory_ceiling._task(str(demo), 60, 3, tmp_path))
    assert (found.model, found.command, found.prompt_tokens) == (demo.name, command, 60)
    assert 60 * MIB < found.peak_bytes <= found.ceiling_bytes
    assert found.is_held
    assert found.left_bytes is not None


def test_what_is_above_is_called_so() -> None:
    above = Held("m", "run", 512, 100 * MIB, 102 * MIB)
    assert memory_ceiling._cells(above)[-1] == "2.0 ABOVE"
    assert memory_ceiling._cells(Held("m", "run", 512, 100 * MIB, 99 * MIB))[-1] == "1.0 below"


@pytest.mark.parametrize(("limit_mib", "outcome"), [(700, "answered"), (60, "refused")])
def test_without_a_ceiling_a_container_runs_a_model_or_refuses_it(
    sparse_model: Path, limit_mib: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLASHLLM_MEMORY", raising=False)
    try:
        found = contain("run", sparse_model, limit_mib * MIB, prompt=3, tokens=4)
    except MemoryLimitError as problem:
        pytest.skip(str(problem))
    assert (found.outcome, found.kills, found.holds) == (outcome, 0, True), found.said
    if outcome == "refused":
        assert "the smallest that works here is" in found.said
        assert f"The limit of this container is {limit_mib} MiB" in found.said


def test_a_container_in_which_something_was_killed_does_not_hold() -> None:
    assert not Contained("chat", 700 * MIB, "answered", "", 700 * MIB, kills=1).holds
    assert not Contained("run", 700 * MIB, "code -9", "", 700 * MIB, kills=0).holds
