"""The chat over an engine in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import pytest
from textual.pilot import Pilot

from flashllm.engine.process import memory_watch
from flashllm.engine.process.client import EngineClient
from flashllm.engine.process.launcher import EngineLauncher
from flashllm.library.models import ModelChoice
from flashllm.options import DEFAULT_OPTIONS
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.chat.status import Phase
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import CountingApp, answers, ask, ready, say, status, texts
from tests.support.engine_openers import OPENER
from tests.support.fake_engine import PLAN
from tests.support.screens import WAIT_SECONDS, until


class ProcessScreen(ChatScreen):
    """Remembers what the status line said."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.progress: list[str] = []
        super().__init__(*arguments, **options)

    def show_status(self) -> None:
        super().show_status()
        self.progress += self.activity.parts()


class ProcessApp(CountingApp):
    """Opens what the launcher opens."""

    def __init__(self, path: str, **options: Any) -> None:
        self.launcher = EngineLauncher(DEFAULT_OPTIONS, OPENER)
        self.engines: list[EngineClient] = []

        def open_engine(_choice: ModelChoice) -> EngineClient:
            self.engines.append(
                self.launcher.open(path, screen.engine.tell_opening, screen.engine.tell_lost)
            )
            return self.engines[-1]

        self.shown_screen = screen = ProcessScreen(open_engine, **options)
        super().__init__(screen)


def app_of(pilot: Pilot[None]) -> ProcessApp:
    return cast("ProcessApp", pilot.app)


async def test_a_turn_and_how_far_opening_is() -> None:
    async with ProcessApp("plain").run_test() as pilot:
        app = await ask(pilot, "ocean?")
        assert answers(app) == ["An ocean"]
        assert "converting 100 %" in app_of(pilot).shown_screen.progress
    assert app.chat.engine.close(WAIT_SECONDS)
    assert app_of(pilot).engines[0]._process._child.returncode == 0


async def test_memory_that_the_engine_gives_back_is_told_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_watch, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(
        memory_watch, "rss_bytes", lambda pid=None: 0 if pid else PLAN.ceiling_bytes
    )
    async with ProcessApp("plain").run_test(size=(120, 24)) as pilot:
        app = await ready(pilot)
        app_of(pilot).engines[0].watch_memory(app.chat.engine.tell_released)
        await until(pilot, lambda: "of weights left memory" in status(app))
        assert texts(app, Notice) == []
        assert answers(await ask(pilot, "ocean?")) == ["An ocean"]
    assert app.chat.engine.close(WAIT_SECONDS)


async def test_an_engine_that_is_killed_is_an_error_and_can_be_opened_again() -> None:
    async with ProcessApp("endless").run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: bool(answers(app)) and answers(app)[0].startswith("begun"))
        os.kill(app_of(pilot).engines[0]._process.pid, signal.SIGKILL)
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        assert any("/retry opens the model again" in text for text in texts(app, Notice))
        assert answers(app)[0].startswith("begun")
        await pilot.press("ctrl+r")
        await ready(pilot)
        await say(pilot, "again")
        await until(pilot, lambda: len(answers(app)) == 2 and answers(app)[1].startswith("begun"))
        await pilot.press("escape")
        await ready(pilot)
    assert app.chat.engine.close(WAIT_SECONDS)
    assert len(app_of(pilot).engines) == 2


async def test_an_engine_that_is_killed_while_nothing_is_asked_is_noticed() -> None:
    async with ProcessApp("plain").run_test() as pilot:
        app = await ready(pilot)
        os.kill(app_of(pilot).engines[0]._process.pid, signal.SIGKILL)
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        assert sum("was killed" in text for text in texts(app, Notice)) == 1
        await pilot.press("ctrl+r")
        await ready(pilot)
        app.chat.open_model(app.chat.choice)  # the one that is closed for that is not lost
        await until(pilot, lambda: len(app_of(pilot).engines) == 3)
        await ready(pilot)
        await ask(pilot, "ocean?")
        assert sum("engine" in text for text in texts(app, Notice)) == 1
    assert app.chat.engine.close(WAIT_SECONDS)
