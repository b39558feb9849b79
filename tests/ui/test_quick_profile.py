"""The quick profile beside the chat: when it is taken, what is said of it, and where it shows."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from flashllm.library import quick_profile_job
from flashllm.telemetry.device_rates import PROFILE, QUICK_PROFILE, DeviceRates
from flashllm.ui.chat import quick_profile
from flashllm.ui.chat.status import StatusLine
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import ask, make_app, ready, screen_text, texts
from tests.support.costs import RATES
from tests.support.fake_engine import FakeModel
from tests.support.screens import until

QUICK = DeviceRates(
    RATES.flash_bytes_per_second,
    RATES.dram_bytes_per_second,
    "a quick profile of vda, 2026-01-01",
    RATES.flash,
    RATES.work,
    QUICK_PROFILE,
)


def measuring(monkeypatch: pytest.MonkeyPatch, script: str) -> list[tuple[Path, int]]:
    """Has jobs run `script`; the result is what they were asked for."""
    asked: list[tuple[Path, int]] = []
    begin = """
        import json, sys, time
        def phase(done):
            print(json.dumps({"event": "phase", "phase": "measuring the disk", "done_bytes": done,
                              "total_bytes": 10, "seconds": 1.0}), file=sys.stderr, flush=True)
    """

    def command(model: Path, leave_bytes: int = 0) -> list[str]:
        asked.append((model, leave_bytes))
        return [sys.executable, "-c", textwrap.dedent(begin) + script]

    monkeypatch.setattr(quick_profile_job, "quick_profile_command", command)
    monkeypatch.setattr(quick_profile, "START_SECONDS", 0.01)
    return asked


def unmeasured() -> FakeModel:
    model = FakeModel(["a"] * 5)
    model.wants_quick_profile = True
    model.measured_rates = QUICK
    return model


def line(app: object) -> str:
    return " ".join(app.query_one(StatusLine).parts)  # type: ignore[attr-defined]


async def test_an_unknown_disk_is_measured_and_the_panel_knows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = measuring(monkeypatch, "phase(4); time.sleep(0.5)")
    app = make_app(unmeasured(), quick_profile=True)
    async with app.run_test(size=(110, 40)) as pilot:
        await ask(pilot, "go")
        await pilot.press("f2")
        await until(pilot, lambda: "measuring the disk: 40 %" in line(app))
        await until(pilot, lambda: "rates: a quick profile of vda" in screen_text(app))
        assert "% of quick profile" in screen_text(app)
        assert "(quick profile)" in line(app)
        assert not app.chat.activity.measuring
        # Slots and what else is yet to be filled belong to the model.
        ((model, leave),) = asked
        split = app.chat.activity.plan.split  # type: ignore[union-attr]
        assert str(model) == app.chat.panels._opened[0]  # type: ignore[index]
        assert split["slots"] < leave < sum(split.values())
        assert texts(app, Notice) == []  # nothing is put into the conversation


@pytest.mark.parametrize("reason", ["off", "known"])
async def test_it_is_not_measured_where_it_is_off_or_known(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    asked = measuring(monkeypatch, "phase(4)")
    model = unmeasured()
    model.wants_quick_profile = reason == "off"
    app = make_app(model, quick_profile=reason != "off")
    async with app.run_test() as pilot:
        await ready(pilot)
        await pilot.pause(0.2)
        assert not app.chat.quick_profile.is_running
        assert asked == []


async def test_a_key_measures_where_nobody_asked_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = measuring(monkeypatch, "phase(1); time.sleep(0.3)")
    app = make_app(unmeasured())
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await pilot.press("f8")
        await until(pilot, lambda: "measuring the disk" in line(app))
        await pilot.press("f8")
        await until(pilot, lambda: "the disk is being measured" in line(app))
        await until(pilot, lambda: "from flash" in line(app))
        assert len(asked) == 1
        await pilot.press("f8")  # a quick one may be taken again
        await until(pilot, lambda: len(asked) == 2)
        await until(pilot, lambda: not app.chat.quick_profile.is_running)


async def test_what_was_measured_well_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = measuring(monkeypatch, "phase(1)")
    model = FakeModel(["a"])
    model.device_rates = RATES
    assert RATES.profile_name == PROFILE
    app = make_app(model)
    async with app.run_test(size=(120, 30)) as pilot:
        await ready(pilot)
        await pilot.press("f8")
        await until(pilot, lambda: f"already known better, by {RATES.origin}" in line(app))
        assert asked == []


FAILS = "print('flashllm: too busy', file=sys.stderr); sys.exit(74)"


async def test_a_failure_is_told_only_to_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measuring(monkeypatch, FAILS)
    app = make_app(unmeasured(), quick_profile=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await until(pilot, lambda: len(asked) == 1)
        await until(pilot, lambda: not app.chat.quick_profile.is_running)
        await pilot.pause(0.1)
        assert "too busy" not in screen_text(app)
        await pilot.press("f8")
        await until(pilot, lambda: "the disk was not measured: too busy" in line(app))


async def test_without_a_model_there_is_nothing_to_measure() -> None:
    from flashllm.errors import ReadFailed

    app = make_app(ReadFailed("no"))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Ctrl+R tries again" in screen_text(app))
        await pilot.press("f8")
        await until(pilot, lambda: "there is no model whose disk" in line(app))


async def test_leaving_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, "phase(1); time.sleep(60)")
    app = make_app(unmeasured(), quick_profile=True)
    async with app.run_test() as pilot:
        await ready(pilot)
        await until(pilot, lambda: app.chat.quick_profile.is_running)
    app.chat.quick_profile.close()
    assert not app.chat.quick_profile.is_running
