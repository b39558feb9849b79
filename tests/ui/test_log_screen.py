"""The log in the chat: its end, what is added, a file that is rotated or not there."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flashllm.system.log import start_log, stop_log
from flashllm.ui.screens import log
from flashllm.ui.screens.log import LogScreen
from tests.support.chat_pilot import make_app, ready, say, screen_text
from tests.support.fake_engine import FakeModel
from tests.support.screens import Around, shown, until

LINE = "2026-11-24 10:00:00,000 7 {} MainThread: {}\n"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOOK_SECONDS", 0.05)


async def test_the_end_is_shown_and_what_is_added(tmp_path: Path) -> None:
    path = tmp_path / "flashllm.log"
    path.write_text("".join(LINE.format("INFO", f"number {n}") for n in range(200)))
    app = Around(lambda: LogScreen(path))
    async with app.run_test(size=(100, 20)) as pilot:
        await until(pilot, lambda: "number 199" in shown(app))
        with path.open("a") as file:
            file.write(LINE.format("ERROR", "it \x1b[2Jbroke"))
            file.write("half a line")
        await until(pilot, lambda: "it broke" in shown(app))
        assert "half" not in shown(app)
        await pilot.press("home")
        await until(pilot, lambda: "number 0" in shown(app))
        with path.open("a") as file:
            file.write(" is whole now\n")
        await pilot.pause(0.2)
        assert "number 0" in shown(app)  # whoever reads the beginning stays there
        await pilot.press("end")
        await until(pilot, lambda: "half a line is whole now" in shown(app))
        await pilot.press("escape")
        assert app.results == [None]


async def test_a_file_that_is_rotated_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "flashllm.log"
    path.write_text(LINE.format("INFO", "before"))
    app = Around(lambda: LogScreen(path))
    async with app.run_test(size=(100, 20)) as pilot:
        await until(pilot, lambda: "before" in shown(app))
        path.rename(tmp_path / "flashllm.log.1")
        await pilot.pause(0.1)
        path.write_text(LINE.format("INFO", "after"))
        await until(pilot, lambda: "after" in shown(app) and "before" in shown(app))
        await pilot.press("q")


async def test_only_the_end_of_a_large_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SHOWN_BYTES", 1000)
    path = tmp_path / "flashllm.log"
    path.write_text("".join(LINE.format("INFO", f"number {n}") for n in range(2000)))
    app = Around(lambda: LogScreen(path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "number 1999" in shown(app))
        await pilot.press("home")
        await pilot.pause()
        numbers = [line.split("number ")[1].split()[0] for line in shown(app).splitlines()
                   if "number " in line]  # fmt: skip
        assert 10 < len(numbers) < 20
        assert numbers[0] != "0"


@pytest.mark.parametrize("where", ["gone", "folder", None])
async def test_where_nothing_can_be_read_that_is_said(tmp_path: Path, where: str | None) -> None:
    (tmp_path / "folder").mkdir()
    path = None if where is None else tmp_path / where
    app = Around(lambda: LogScreen(path))
    async with app.run_test(size=(100, 20)) as pilot:
        words = "cannot be read" if where == "folder" else "Nothing has been logged yet."
        await until(pilot, lambda: words in shown(app))
        await pilot.pause(0.3)
        assert shown(app).count(words) == 1
        if where == "gone":
            (tmp_path / "gone").write_text(LINE.format("INFO", "now"))
            await until(pilot, lambda: "now" in shown(app) and words not in shown(app))


async def test_a_command_shows_the_log_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "flashllm.log"
    start_log(path)
    try:
        logging.getLogger("flashllm").warning("the disk \x1b]0;x\x07is slow")
        async with make_app(FakeModel(["x"]), log_file=path).run_test() as pilot:
            app = await ready(pilot)
            await say(pilot, "/log")
            await until(pilot, lambda: isinstance(app.screen, LogScreen))
            await until(pilot, lambda: "the disk is slow" in screen_text(app))
    finally:
        stop_log()
