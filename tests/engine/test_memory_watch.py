"""The memory of both processes is watched, and the engine gives slots back before the ceiling."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from flashllm.cli.shared.open_model import WORKER_ENTRY
from flashllm.engine.local import Model
from flashllm.engine.process import memory_watch
from flashllm.engine.process.launcher import EngineLauncher
from flashllm.engine.process.memory_watch import (
    MARGIN_BYTES,
    RETURN_STEPS,
    STEP_BYTES,
    bytes_to_release,
)
from flashllm.options import DEFAULT_OPTIONS
from flashllm.system.memory import rss_bytes
from flashllm.units import MIB
from tests.support.fake_engine import PLAN

WAIT_SECONDS = 60.0
PART, CEILING = 156 * MIB, 480 * MIB
PLANNED = dataclasses.replace(
    PLAN, ceiling_bytes=CEILING, split={**PLAN.split, "application": PART}
)
ENGINE = CEILING - PART
"""What the engine may take by the plan."""
PROMPT = [3 + number % 90 for number in range(60)]


@pytest.mark.parametrize(
    ("application", "engine", "released", "wanted"),
    [
        (60 * MIB, ENGINE, 0, 0),
        (PART - MARGIN_BYTES, ENGINE, 0, 0),
        (PART - MARGIN_BYTES + 1, 0, 0, STEP_BYTES),
        (PART + 20 * MIB, 100 * MIB, 0, 40 * MIB),
        (60 * MIB, ENGINE + 70 * MIB, 0, 0),
        (60 * MIB, ENGINE + 100 * MIB, 0, 24 * MIB),
        (PART, ENGINE + 39 * MIB, 0, 56 * MIB),
        # What is given back is in use no longer, and counts for what is needed.
        (PART, ENGINE + 39 * MIB - 56 * MIB, 56 * MIB, 56 * MIB),
        (PART, ENGINE - 16 * MIB, 16 * MIB, 16 * MIB),
        (PART, ENGINE, 16 * MIB, 32 * MIB),
        # A little too much is kept, so that it does not go to and fro; much is not.
        (PART, 0, MARGIN_BYTES + (RETURN_STEPS - 1) * STEP_BYTES, None),
        (PART, 0, MARGIN_BYTES + RETURN_STEPS * STEP_BYTES, MARGIN_BYTES),
        (60 * MIB, 0, RETURN_STEPS * STEP_BYTES, 0),
    ],
)
def test_what_is_to_be_given_back(
    application: int, engine: int, released: int, wanted: int | None
) -> None:
    expected = released if wanted is None else wanted
    assert bytes_to_release(PLANNED, application, engine, released) == expected


def test_both_stay_below_the_ceiling_whatever_they_take() -> None:
    """The engine fills the slots that it has; the application grows and shrinks."""
    released, beyond = 0, 30 * MIB
    for application in [
        *range(60 * MIB, 300 * MIB, 3 * MIB),
        *range(300 * MIB, 60 * MIB, -3 * MIB),
    ]:
        engine = ENGINE + beyond - released
        released = bytes_to_release(PLANNED, application, engine, released)
        assert application + ENGINE + beyond - released <= CEILING
    assert released < MARGIN_BYTES + RETURN_STEPS * STEP_BYTES


def test_slots_go_when_the_application_grows_and_come_back(
    sparse_model: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [token.id for token in model.generate(PROMPT, 40)]
    grown, heard, changed = 0, [], threading.Event()

    def on_released(nbytes: int) -> None:
        heard.append(nbytes)
        changed.set()

    def measured(pid: int | None = None) -> int:
        return rss_bytes(pid) + (0 if pid else grown)

    monkeypatch.setattr(memory_watch, "rss_bytes", measured)
    monkeypatch.setattr(memory_watch, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(memory_watch, "STEP_BYTES", 64 << 10)
    launcher = EngineLauncher(DEFAULT_OPTIONS, WORKER_ENTRY)
    with launcher.open(str(sparse_model), on_released=on_released) as engine:
        assert [token.id for token in engine.generate(PROMPT, max_tokens=40)] == expected
        assert heard == []
        grown = engine.plan.split["application"]
        assert changed.wait(WAIT_SECONDS)
        assert 0 < heard[-1] <= engine.plan.split["slots"]
        assert [token.id for token in engine.generate(PROMPT, max_tokens=40)] == expected
        changed.clear()
        grown = 0
        assert changed.wait(WAIT_SECONDS)
        assert heard[-1] == 0
        assert [token.id for token in engine.generate(PROMPT, max_tokens=40)] == expected


def test_it_ends_with_the_engine(sparse_model: Path) -> None:
    launcher = EngineLauncher(DEFAULT_OPTIONS, WORKER_ENTRY)
    with launcher.open(str(sparse_model)) as engine:
        assert engine._watch is not None
        thread = engine._watch._thread
        assert thread.is_alive()
        assert engine.release_slots(1 << 40) > 0
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
