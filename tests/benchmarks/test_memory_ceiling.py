"""Commands under their smallest ceilings, and in containers without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import memory_ceiling
from benchmarks.memory_ceiling import Held, hold
from benchmarks.memory_limit import MemoryLimitError, limited
from flashllm.units import MIB

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@LINUX
@pytest.mark.parametrize("command", ["again"])
def test_a_command_is_held_against_its_smallest_ceiling(
    demo: Path, tmp_path: Path, command: str
) -> None:
    found = hold(command, memory_ceiling._task(str(demo), 60, 3, tmp_path))
    assert (found.model, found.command, found.prompt_tokens) == (demo.name, command, 60)
    assert 100 * MIB < found.peak_bytes <= found.ceiling_bytes
    assert found.is_held
    assert found.left_bytes is not None


def test_what_is_above_is_called_so() -> None:
    above = Held("m", "run", 512, 100 * MIB, 102 * MIB)
    assert memory_ceiling._cells(above)[-1] == "2.0 ABOVE"
    assert memory_ceiling._cells(Held("m", "run", 512, 100 * MIB, 99 * MIB))[-1] == "1.0 below"


@pytest.mark.parametrize(("limit_mib", "codes"), [(700, (0,)), (240, (71,))])
def test_without_a_ceiling_a_container_runs_a_model_or_refuses_it(
    sparse_model: Path, limit_mib: int, codes: tuple[int, ...]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "FLASHLLM_MEMORY"}
    try:
        with limited(limit_mib * MIB) as group:
            group.check_joinable()
            command = [sys.executable, "-m", "flashllm", "run", str(sparse_model)]
            done = subprocess.run(
                group.command([*command, "--ids", "5 6 7", "-n", "4", "--json"]),
                capture_output=True, text=True, check=False,
                env=environment,
            )  # fmt: skip
            usage = group.usage()
    except MemoryLimitError as problem:
        pytest.skip(str(problem))
    assert done.returncode in codes, done.stderr
    assert usage.kills == 0
    if done.returncode:
        assert "the smallest that works here is" in done.stderr
        assert f"The limit of this container is {limit_mib} MiB" in done.stderr
    else:
        assert json.loads(done.stdout)["memory"]["ceiling_bytes"] < limit_mib * MIB
