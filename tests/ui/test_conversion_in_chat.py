"""A conversion beside the chat: on its status line, and ended with it."""

from __future__ import annotations

from pathlib import Path

from flashllm.library.job import Conversions
from flashllm.ui.status import StatusLine
from tests.ui.fake_engine import FakeModel
from tests.ui.fake_library import scripted_job
from tests.ui.test_chat import make_app, ready, until


def line(app: object) -> str:
    return " ".join(app.query_one(StatusLine).parts)  # type: ignore[attr-defined]


async def test_the_status_line_shows_it_and_its_end(tmp_path: Path) -> None:
    app = make_app(FakeModel([]))
    app.conversions._make = scripted_job("phase(5); time.sleep(60)")
    async with app.run_test() as pilot:
        await ready(pilot)
        app.conversions.start(tmp_path / "source", tmp_path / "made.flash")
        await until(pilot, lambda: "converting made.flash: bundles: 50 %, 2 s left" in line(app))
        app.conversions.close()
        await until(pilot, lambda: "converting made.flash: stopped" in line(app))
        await until(pilot, lambda: not app.activity.conversion)
    assert isinstance(app.conversions, Conversions)
    assert not app.conversions.is_running
