"""A conversion beside the chat: on its status line, and ended with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

from flashllm.library.conversion_job import Conversions
from flashllm.ui.chat.status import StatusLine
from flashllm.ui.screens.confirm import ConfirmScreen
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import CountingApp, make_app, ready, texts
from tests.support.fake_engine import FakeModel
from tests.support.fake_library import scripted_job
from tests.support.screens import until


def line(app: object) -> str:
    return " ".join(app.query_one(StatusLine).parts)  # type: ignore[attr-defined]


def texts_of(page: Screen[Any]) -> str:
    return "\n".join(str(static.content) for static in page.query(Static))


@asynccontextmanager
async def converting(tmp_path: Path, script: str) -> AsyncIterator[tuple[CountingApp, Pilot[None]]]:
    """A chat that has begun a conversion, which does what the script says."""
    app = make_app(FakeModel([]))
    app.chat.conversions._make = scripted_job(script)
    async with app.run_test() as pilot:
        await ready(pilot)
        app.chat.conversions.start(tmp_path / "source", tmp_path / "made.flash")
        yield app, pilot


async def test_the_status_line_shows_it_and_its_end(tmp_path: Path) -> None:
    async with converting(tmp_path, "phase(5); time.sleep(60)") as (app, pilot):
        await until(pilot, lambda: "converting made.flash: bundles: 50 %, 2 s left" in line(app))
        app.chat.conversions.close()
        await until(pilot, lambda: "converting made.flash: stopped" in line(app))
        await until(pilot, lambda: not app.chat.activity.conversion)
        assert not texts(app, Notice)
    assert isinstance(app.chat.conversions, Conversions)
    assert not app.chat.conversions.is_running


async def test_how_it_failed_stays_to_be_read(tmp_path: Path) -> None:
    script = "print('flashllm: \\x1b[2Jno [b]space[/b]', file=sys.stderr); sys.exit(73)"
    async with converting(tmp_path, script) as (app, pilot):
        failed = "converting made.flash failed: no [b]space[/b]"
        await until(pilot, lambda: texts(app, Notice)[-1:] == [failed])
        assert not app.chat.activity.conversion


async def test_leaving_asks_while_something_is_converted(tmp_path: Path) -> None:
    async with converting(tmp_path, "phase(5); time.sleep(60)") as (app, pilot):
        for answer in ("n", "escape"):
            await pilot.press("ctrl+q")
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            assert "made.flash is being converted" in texts_of(app.screen)
            await pilot.press(answer)
            await until(pilot, lambda: not isinstance(app.screen, ConfirmScreen))
        assert app.chat.conversions.is_running
        app.push_screen(ConfirmScreen("Another question?"))
        await pilot.press("ctrl+q")
        await until(pilot, lambda: "made.flash is being converted" in texts_of(app.screen))
        assert app.is_running
        await pilot.press("ctrl+q")
        await until(pilot, lambda: not app.is_running)
    app.chat.conversions.close()


async def test_yes_leaves_and_nothing_is_asked_where_nothing_is_converted(tmp_path: Path) -> None:
    async with converting(tmp_path, "phase(5); time.sleep(60)") as (app, pilot):
        await pilot.press("ctrl+q", "y")
        await until(pilot, lambda: not app.is_running)
    app.chat.conversions.close()
    again = make_app(FakeModel([]))
    again.conversions = app.chat.conversions
    async with again.run_test() as pilot:
        await ready(pilot)
        await pilot.press("ctrl+q")
        await until(pilot, lambda: not again.is_running)
