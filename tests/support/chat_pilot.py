"""What tests of the chat do and look at, over a scripted engine."""

from __future__ import annotations

from typing import Any, cast

from textual import on
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Static

from flashllm.library.models import OpenRequest
from flashllm.ui.app import ChatApp
from flashllm.ui.chat import messages
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.chat.status import Phase, StatusLine
from flashllm.ui.prompt.prompt import Prompt
from flashllm.ui.transcript.answer import Answer
from tests.support.fake_engine import FakeModel
from tests.support.screens import until


class CountingApp(ChatApp):
    """Remembers its phases, some of which pass in no time."""

    def __init__(self, chat: ChatScreen) -> None:
        self.entered: list[Phase] = []
        super().__init__(chat)

    @on(messages.PhaseEntered)
    def remember(self, event: messages.PhaseEntered) -> None:
        self.entered.append(event.phase)


class ClosingApp(CountingApp):
    """Closes its engine, so that pilots, which wait until nothing computes, come to their end."""

    def on_unmount(self) -> None:
        self.chat.engine.close(0.0)


def make_app(model: FakeModel | Exception, **options: Any) -> CountingApp:
    def open_engine(_request: OpenRequest) -> Any:
        if isinstance(model, Exception):
            raise model
        model.closed = False  # a picker may open the same one again
        return model

    return ClosingApp(ChatScreen(open_engine, **options))


async def ready(pilot: Pilot[None]) -> ChatApp:
    app = cast("ChatApp", pilot.app)
    await until(pilot, lambda: app.chat.activity.phase is Phase.READY)
    return app


async def say(pilot: Pilot[None], text: str) -> None:
    pilot.app.query_one(Prompt).load_text(text)
    await pilot.press("enter")


async def ask(pilot: Pilot[None], text: str) -> ChatApp:
    """Asks, and waits for the end of the answer."""
    app = await ready(pilot)
    entered = cast("CountingApp", app).entered
    before = entered.count(Phase.READING)
    await say(pilot, text)
    await until(pilot, lambda: entered.count(Phase.READING) > before)
    return await ready(pilot)


def texts(app: ChatApp, kind: type[Static]) -> list[str]:
    return [str(widget.content) for widget in app.query(kind)]


def answers(app: ChatApp) -> list[str]:
    return [widget.shown_text for widget in app.query(Answer)]


def notes(app: ChatApp) -> list[str]:
    """What stands below answers."""
    return [answer.note for answer in app.query(Answer) if answer.note]


def status(app: ChatApp) -> str:
    return str(app.query_one(StatusLine).render())


def waiting(app: ChatApp) -> list[str]:
    """Messages above the prompt."""
    return [draft.text for draft in app.chat.waiting.drafts]


def screen_text(app: App[None]) -> str:
    """Every character on the screen, as the terminal would get it."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    assert len(strips) == height
    return "\n".join("".join(segment.text for segment in strip)[:width] for strip in strips)


def sent_last(model: FakeModel) -> str:
    """The last message of the last conversation that was sent."""
    assert model.tokenizer is not None
    return model.tokenizer.conversations[-1][-1]["content"]
