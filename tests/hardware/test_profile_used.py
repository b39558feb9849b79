"""A profile changes how bundles are read: never what is answered, nor what the ceiling is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flashllm.engine.local import open_model
from flashllm.errors import MemoryCeilingTooSmall, ProfileError
from flashllm.hardware.machine_profile import save
from flashllm.planning.ways_to_read import GAP_BYTES
from tests.model.test_memory_ceiling import LINUX, run, smallest_mib
from tests.support.profiles import law

PROMPT = [3 + number % 90 for number in range(40)]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Of a device that wants many threads and reads over wide gaps."""
    return save(law(1e-3, 4e9, 1, 8, 128), tmp_path / "profile.json")


def answer(directory: Path, **settings: Any) -> tuple[list[int], Any]:
    with open_model(directory, **settings) as model:
        generation = model.generate(PROMPT, max_tokens=24)
        for _ in generation:
            pass
        return generation.ids, model.plan


@pytest.mark.parametrize("settings", [{}, {"window": 1}, {"select": "all"}], ids=str)
def test_the_answer_is_the_same(
    sparse_model: Path, profile: Path, settings: dict[str, Any]
) -> None:
    usual, plan = answer(sparse_model, **settings)
    found, profiled = answer(sparse_model, profile=profile, **settings)
    assert found == usual
    assert (plan.io_threads, plan.gap_bytes) == (32, GAP_BYTES)
    assert (profiled.io_threads > 32, profiled.gap_bytes > GAP_BYTES) == (True, True)
    assert profiled.prefill == plan.prefill


def test_it_fits_whatever_the_profile_wants(sparse_model: Path, profile: Path) -> None:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        answer(sparse_model, memory=10 << 20)
    # Room for the process to grow meanwhile, and none for what more threads would take.
    memory = caught.value.smallest_bytes + (16 << 20)
    assert answer(sparse_model, memory=memory, profile=profile)[1].io_threads == 32


@LINUX
def test_the_ceiling_is_kept(sparse_model: Path, profile: Path) -> None:
    least = smallest_mib(sparse_model) + 64
    arguments = ("--memory", f"{least}MiB", "--profile", str(profile))
    accepted = run(sparse_model, *arguments)
    assert accepted.returncode == 0, accepted.stderr
    assert "was measured of a device of the tests" in accepted.stderr
    told = json.loads(accepted.stdout)
    assert told["io"]["threads"] == 128
    assert told["memory"]["rss_peak_bytes"] <= told["memory"]["ceiling_bytes"]


def test_a_profile_that_is_none_is_an_error(sparse_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="there is no such file"):
        answer(sparse_model, profile=tmp_path / "none.json")


def test_a_quick_profile_chooses_nothing(sparse_model: Path, tmp_path: Path) -> None:
    quick = dataclasses.replace(law(1e-3, 4e9, 1, 8, 128), quick=True)
    found, plan = answer(sparse_model, profile=save(quick, tmp_path / "quick.json"))
    assert (plan.io_threads, plan.gap_bytes) == (32, GAP_BYTES)
    assert found == answer(sparse_model)[0]
