"""From one model to another: the one that works stays, or comes back, and the header says so."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from flashllm.errors import EngineLost, LayoutError, MemoryCeilingTooSmall, ReadFailed, UsageError
from flashllm.library.models import ModelChoice, OpenRequest
from flashllm.planning.plan import Plan
from flashllm.ui.app import ChatApp
from flashllm.ui.chat import messages
from flashllm.ui.chat.header import EngineHeader, header_line
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.chat.status import Phase
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import ClosingApp, answers, ask, ready, say, texts
from tests.support.fake_engine import FakeModel, Prefill
from tests.support.screens import WAIT_SECONDS, until

BIG, BROKEN = ModelChoice(Path("/m/big"), "big"), ModelChoice(Path("/m/broken"), "broken")
MIB = 1 << 20


class Engines:
    """Opens what was put in for a choice, and remembers what was asked; `check` likewise."""

    def __init__(self) -> None:
        self.outcomes: dict[Path | None, list[Any]] = {}
        self.checks: dict[Path | None, Exception] = {}
        self.asked: list[OpenRequest] = []
        self.made: list[FakeModel] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self, request: OpenRequest) -> Any:
        self.asked.append(request)
        self.gate.wait(WAIT_SECONDS)
        planned = self.outcomes.get(request.choice.path)
        outcome = planned.pop(0) if planned else None
        if isinstance(outcome, BaseException):
            raise outcome
        model = outcome or FakeModel([f"answered by {request.choice.name}"])
        assert all(other.closed for other in self.made), "two are open at once"
        self.made.append(model)
        return model

    def check(self, request: OpenRequest, plan: Plan) -> None:
        assert plan.split["interpreter"] == 180 * MIB, "of the model that is open"
        assert not self.made[-1].closed
        error = self.checks.get(request.choice.path)
        if error is not None:
            raise error

    def app(self, **options: Any) -> ClosingApp:
        return ClosingApp(ChatScreen(self.open, check=self.check, **options))


def header(app: ChatApp) -> str:
    return " ".join(str(app.query_one(EngineHeader).render()).split())


def told(app: ChatApp) -> str:
    return texts(app, Notice)[-1]


async def closed(pilot: Pilot[None], app: ChatApp) -> None:
    await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)


async def test_what_a_check_finds_leaves_the_open_model_open() -> None:
    engines = Engines()
    engines.checks[BROKEN.path] = LayoutError("/m/broken/manifest.json: damaged; convert again")
    async with engines.app().run_test() as pilot:
        app = await ready(pilot)
        app.chat.open_model(BROKEN)
        await until(pilot, lambda: "damaged" in "".join(texts(app, Notice)))
        await ready(pilot)
        assert not engines.made[0].closed
        assert len(engines.asked) == 1
        assert told(app).splitlines() == [
            "broken cannot be opened: /m/broken/manifest.json: damaged; convert again",
            "Still open: the model.",
        ]
        assert header(app) == "flashllm fake, f16, predicted (lossy), context 512 ready"
        assert app.chat.choice == ModelChoice()
        assert not app.chat.check_action("reopen", ())
        await ask(pilot, "still there?")
        assert answers(app) == ["answered by the model"]


async def test_a_model_that_fails_only_when_it_is_opened_gives_way_to_the_one_before() -> None:
    engines = Engines()
    engines.outcomes[BROKEN.path] = [ReadFailed("/m/broken/ffn.bundles: EIO")]
    async with engines.app().run_test() as pilot:
        app = await ask(pilot, "first")
        app.chat.open_model(BROKEN)
        await until(pilot, lambda: len(engines.made) == 2)
        await ready(pilot)
        assert told(app).splitlines() == [
            "broken cannot be opened: /m/broken/ffn.bundles: EIO",
            "Opening the model again.",
        ]
        assert engines.made[0].closed
        assert [request.choice.name for request in engines.asked] == [
            "the model", "broken", "the model",
        ]  # fmt: skip
        assert app.chat.choice == ModelChoice()
        await ask(pilot, "second")
        sent = engines.made[1].tokenizer.conversations[-1]  # type: ignore[union-attr]
        assert [one["content"] for one in sent] == ["first", "answered by the model", "second"]


async def test_where_neither_opens_ctrl_r_retries_the_one_that_worked() -> None:
    engines = Engines()
    engines.outcomes[None] = [None, MemoryError()]
    engines.outcomes[BROKEN.path] = [ReadFailed("EIO")]
    async with engines.app().run_test() as pilot:
        app = await ready(pilot)
        app.chat.open_model(BROKEN)
        await closed(pilot, app)
        assert header(app) == "flashllm no model is open failed"
        assert told(app).splitlines()[0].startswith("the model cannot be opened: out of memory")
        assert "Ctrl+R tries again" in told(app)
        await pilot.press("ctrl+r")
        await ready(pilot)
        assert engines.asked[-1].choice == ModelChoice()
        assert header(app).endswith("ready")


async def test_ctrl_r_retries_what_failed_where_nothing_was_open() -> None:
    engines = Engines()
    engines.outcomes[BROKEN.path] = [ReadFailed("EIO")]
    async with engines.app(choice=BROKEN).run_test() as pilot:
        app = await ready_or_closed(pilot)
        assert header(app) == "flashllm no model is open failed"
        await pilot.press("ctrl+r")
        await ready(pilot)
        assert [request.choice for request in engines.asked] == [BROKEN, BROKEN]


async def ready_or_closed(pilot: Pilot[None]) -> ChatApp:
    app: Any = pilot.app
    await until(pilot, lambda: app.chat.activity.phase in (Phase.READY, Phase.CLOSED))
    return app  # type: ignore[no-any-return]


async def test_an_engine_that_was_lost_is_not_brought_back_by_another_failure() -> None:
    engines = Engines()
    engines.outcomes[BROKEN.path] = [ReadFailed("EIO"), None]
    async with engines.app().run_test() as pilot:
        app = await ready(pilot)
        app.chat.engine.tell_lost(EngineLost("the engine was killed"))
        await closed(pilot, app)
        assert header(app) == "flashllm no model is open failed"
        app.chat.open_model(BROKEN)
        await until(pilot, lambda: "broken cannot be opened" in told(app))
        await closed(pilot, app)
        assert len(engines.asked) == 2
        await pilot.press("ctrl+r")
        await ready(pilot)
        assert engines.asked[-1].choice == BROKEN


async def test_the_header_tells_what_the_engine_does() -> None:
    engines = Engines()
    read, write = threading.Event(), threading.Event()
    engines.outcomes[None] = [FakeModel([Prefill(1, 2), read, "begun", write])]
    engines.gate.clear()
    async with engines.app(choice=ModelChoice(name="slow")).run_test() as pilot:
        app: Any = pilot.app
        await until(pilot, lambda: header(app) == "flashllm no model is open opening slow")
        app.chat.post_message(messages.Opening(progress("loading", 1, 4)))
        await until(pilot, lambda: header(app).endswith("opening slow 25 %"))
        engines.gate.set()
        await ready(pilot)
        assert header(app).endswith("context 512 ready")
        await say(pilot, "go")
        await until(pilot, lambda: header(app).endswith("reading a prompt"))
        read.set()
        await until(pilot, lambda: header(app).endswith("answering"))
        write.set()
        await ready(pilot)
        engines.gate.clear()
        app.chat.open_model(BIG)
        await until(pilot, lambda: header(app) == "flashllm no model is open opening big")
        engines.gate.set()
        await ready(pilot)


def progress(phase: str, done: int, total: int) -> Any:
    from flashllm.engine.protocol import OpeningProgress

    return OpeningProgress(phase, done, total)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (40, "flashllm  demo, f16                ready"),
        (24, "flashllm  demo, …  ready"),
        (12, "ready"),
        (3, "re…"),
    ],
)
def test_the_state_goes_before_the_model(width: int, line: str) -> None:
    assert str(header_line("demo, f16", "ready", width)) == line


async def test_another_choice_while_one_is_opened_is_the_one_that_counts() -> None:
    engines = Engines()
    async with engines.app().run_test() as pilot:
        app = await ready(pilot)
        engines.gate.clear()
        app.chat.open_model(BIG)
        app.chat.open_model(BROKEN)
        await say(pilot, "for whom?")
        engines.gate.set()
        await until(pilot, lambda: answers(app) == ["answered by broken"])
        assert app.chat.choice == BROKEN


async def test_a_second_choice_that_fails_leaves_the_first() -> None:
    engines = Engines()
    engines.checks[BROKEN.path] = UsageError("no")
    async with engines.app().run_test() as pilot:
        app = await ready(pilot)
        engines.gate.clear()
        app.chat.open_model(BIG)
        app.chat.open_model(BROKEN)
        engines.gate.set()
        await until(pilot, lambda: bool(texts(app, Notice)) and "Still open: big" in told(app))
        await ready(pilot)
        assert app.chat.choice == BIG


async def test_a_ceiling_that_is_too_small_says_what_to_type_and_that_opens_it() -> None:
    engines = Engines()
    engines.outcomes[None] = [MemoryCeilingTooSmall("too small; --memory 317MiB", 309 * MIB)]
    async with engines.app(memory=96 * MIB).run_test() as pilot:
        app = await ready_or_closed(pilot)
        assert "`/set memory 317MiB` opens it with enough." in told(app)
        assert engines.asked[0].memory == 96 * MIB
        await say(pilot, "/set memory 317MiB")
        await ready(pilot)
        assert engines.asked[-1] == OpenRequest(ModelChoice(), 317 * MIB)


async def test_ceiling_and_context_are_changed_and_the_conversation_stays() -> None:
    engines = Engines()
    async with engines.app().run_test() as pilot:
        app = await ask(pilot, "first")
        for line, request in (
            ("/set memory 6GiB", OpenRequest(ModelChoice(), 6 << 30)),
            ("/set ctx-size 4096", OpenRequest(ModelChoice(), 6 << 30, 4096)),
            ("/set memory auto", OpenRequest(ModelChoice(), None, 4096)),
        ):
            await say(pilot, line)
            await until(pilot, lambda request=request: engines.asked[-1] == request)
            await ready(pilot)
        assert [model.closed for model in engines.made] == [True, True, True, False]
        rows = dict(app.chat.answer_settings.values.rows())
        assert (rows["memory"], rows["ctx_size"]) == ("auto", "4096")
        await ask(pilot, "second")
        assert len(answers(app)) == 2
        await say(pilot, "/show")
        await until(pilot, lambda: "auto: 512 MiB" in told(app))


async def test_limits_that_do_not_fit_leave_those_before() -> None:
    engines = Engines()
    async with engines.app(memory=512 * MIB).run_test() as pilot:
        app = await ready(pilot)
        engines.checks[None] = MemoryCeilingTooSmall("10 MiB is too small", 309 * MIB)
        await say(pilot, "/set memory 10MiB")
        await until(pilot, lambda: "10 MiB is too small" in "".join(texts(app, Notice)))
        assert told(app).endswith("It stays open as it was.")
        assert app.chat.answer_settings.memory == 512 * MIB
        assert not engines.made[0].closed
        engines.checks.clear()
        engines.outcomes[None] = [MemoryError()]
        await say(pilot, "/set ctx-size 99999")
        await until(pilot, lambda: len(engines.made) == 2)
        await ready(pilot)
        assert engines.asked[-1] == OpenRequest(ModelChoice(), 512 * MIB)
        assert (app.chat.answer_settings.memory, app.chat.answer_settings.context) == (
            512 * MIB, None,
        )  # fmt: skip


async def test_limits_are_not_changed_in_the_middle_of_an_answer() -> None:
    engines = Engines()
    engines.outcomes[None] = [FakeModel(["begun", threading.Event()])]
    async with engines.app().run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: answers(app) == ["begun"])
        await say(pilot, "/set memory 6GiB")
        await until(pilot, lambda: "/stop first" in "".join(texts(app, Notice)))
        assert len(engines.asked) == 1
        await pilot.press("escape")
        await ready(pilot)


async def test_leaving_while_another_model_fails_brings_nothing_back() -> None:
    engines = Engines()
    engines.outcomes[BROKEN.path] = [ReadFailed("EIO")]
    app = engines.app()
    async with app.run_test() as pilot:
        await ready(pilot)
        engines.gate.clear()
        app.chat.open_model(BROKEN)
        await until(pilot, lambda: len(engines.asked) == 2)
        app.chat.engine.close(0.0)
        engines.gate.set()
        assert app.chat.engine.close(WAIT_SECONDS)
    assert len(engines.asked) == 2
