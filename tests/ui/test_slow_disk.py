"""A disk that is slow, or hangs: the chat says so, stops when it is told to, and can be used."""

from __future__ import annotations

import threading

import pytest

from flashllm.engine.protocol import EngineWait
from flashllm.ui.chat import engine_thread
from flashllm.ui.chat import status as chat_status
from flashllm.ui.chat.screen import HANGS_HINT
from flashllm.ui.chat.status import wait_text
from tests.support.chat_pilot import answers, make_app, notes, ready, say, status
from tests.support.fake_engine import FakeModel, Prefill
from tests.support.screens import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a second takes a tenth of it."""
    monkeypatch.setattr(engine_thread, "LET_GO_SECONDS", 0.1)
    monkeypatch.setattr(chat_status, "UNUSUAL_WAIT_SECONDS", 0.1)


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (EngineWait(), ""),
        (EngineWait(disk_seconds=0.09), ""),
        (EngineWait(disk_seconds=4.23), "waiting for disk 4.2 s"),
        (EngineWait(silent_seconds=2.0), ""),
        (EngineWait(4.23, 61.2), "the engine does not answer: 61 s"),
    ],
)
def test_unusual_waits_are_told(wait: EngineWait, expected: str) -> None:
    assert wait_text(wait) == expected


@pytest.mark.parametrize("begun", [[Prefill(3, 9)], ["begun"]])
async def test_the_status_line_says_how_long_the_disk_takes(begun: list[str | Prefill]) -> None:
    gate = threading.Event()
    model = FakeModel([*begun, lambda: gate.wait(), " and on"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        model.wait = EngineWait(disk_seconds=4.2)
        await until(pilot, lambda: "waiting for disk 4.2 s" in status(app))
        await pilot.press(*"typed")
        assert app.chat.prompt.text == "typed"
        model.wait = EngineWait(disk_seconds=5.3)
        await until(pilot, lambda: "waiting for disk 5.3 s" in status(app))
        gate.set()
        await ready(pilot)
        assert answers(app)[0].endswith("and on")
        await until(pilot, lambda: "waiting for disk" not in status(app))


async def test_waits_of_a_disk_that_works_are_not_told() -> None:
    model = FakeModel([part for _ in range(20) for part in (0.03, "word ")])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        model.wait = EngineWait(disk_seconds=4.2)  # as if, at each moment at which one looks
        seen: list[str] = []
        await say(pilot, "go")
        await until(pilot, lambda: seen.append(status(app)) or len(answers(app)) == 1)  # type: ignore[func-returns-value]
        await ready(pilot)
        assert not [text for text in seen if "waiting for disk" in text]


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_read_that_hangs_does_not_keep_a_stopped_answer(key: str) -> None:
    gate = threading.Event()
    model = FakeModel(["begun", lambda: gate.wait(), " never"], ["fine"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: answers(app) == ["begun"])
        await pilot.press(key)
        await ready(pilot)
        await until(pilot, lambda: HANGS_HINT in status(app))
        assert answers(app) == ["begun"]
        assert notes(app) == ["stopped; Enter here, or /continue, goes on"]
        await say(pilot, "again")
        model.wait = EngineWait(disk_seconds=9.0)
        await until(pilot, lambda: "waiting for disk 9.0 s" in status(app))
        gate.set()
        await ready(pilot)
        assert answers(app) == ["begun", "fine"]
        said = [message["content"] for message in app.chat.conversation.messages()]
        assert said == ["go", "begun", "again", "fine"]


async def test_what_is_stopped_before_its_turn_is_not_answered() -> None:
    gate = threading.Event()
    model = FakeModel(["begun", lambda: gate.wait()], ["second"], ["third"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "first")
        await until(pilot, lambda: answers(app) == ["begun"])
        await pilot.press("escape")
        await ready(pilot)
        await say(pilot, "is given up")
        await pilot.press("escape")
        await ready(pilot)
        await until(pilot, lambda: app.chat.prompt.text == "is given up")
        gate.set()
        await say(pilot, "last")
        await until(pilot, lambda: answers(app) == ["begun", "second"])
        assert len(model.requests) == 2
