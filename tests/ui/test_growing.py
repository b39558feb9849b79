"""What a growing answer costs the thread that keys wait for."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets._markdown import MarkdownHeader, MarkdownTable

from flashllm.ui import closed_widgets
from flashllm.ui.chat import answering
from flashllm.ui.chat.refresh_rate import RefreshRate
from flashllm.ui.chat.status import Phase
from flashllm.ui.run import FULL_COLLECTION_EVERY, run_app
from flashllm.ui.transcript.answer import Answer
from flashllm.ui.transcript.markdown import AnswerMarkdown, Paragraph
from tests.support.chat_pilot import ask, make_app, ready, say
from tests.support.fake_engine import FakeModel, Prefill
from tests.support.screens import WAIT_SECONDS, until

LINES = "Something that is long enough for more than a line of so narrow a screen.\n" * 12


def count_layouts(monkeypatch: pytest.MonkeyPatch) -> list[Screen[Any]]:
    """A screen for each layout from now on."""
    layouts: list[Screen[Any]] = []
    lay_out = Screen._refresh_layout

    def counted(self: Screen[Any], *arguments: Any, **options: Any) -> None:
        lay_out(self, *arguments, **options)
        layouts.append(self)

    monkeypatch.setattr(Screen, "_refresh_layout", counted)
    return layouts


async def laid_out(pilot: Pilot[None], layouts: Sequence[Screen[Any]], at_least: int = 0) -> None:
    """There were so many layouts, and no more come."""
    await until(pilot, lambda: len(layouts) >= at_least)
    seen = -1
    while seen != len(layouts):
        seen = len(layouts)
        await pilot.pause(0.3)


@pytest.mark.parametrize(
    ("before", "more"),
    [
        (LINES, "\n\nA paragraph"),
        (LINES + "\n- an item", "\n- another one"),
        (LINES + "\n1. an item", "\n2. another one"),
        (LINES + "\n1. an item", "\n   - in which there is a list"),
        (LINES + "\n- an item", "\n\n  of two paragraphs"),
        (LINES + "```\nfirst", "\nsecond\nthird"),
    ],
    ids=["paragraph", "item", "number", "list in a list", "long item", "code"],
)
async def test_one_layout_for_what_is_added(
    monkeypatch: pytest.MonkeyPatch, before: str, more: str
) -> None:
    async with make_app(FakeModel([])).run_test(size=(60, 20)) as pilot:
        app = await ready(pilot)
        transcript = app.chat.shown.transcript
        answer = Answer(before, 1)
        await transcript.add(answer)
        await until(pilot, lambda: answer.size.height > transcript.size.height)
        layouts = count_layouts(monkeypatch)
        await answer.add(" ")  # from here on it grows
        await laid_out(pilot, layouts)
        layouts.clear()
        await answer.add(more)
        await laid_out(pilot, layouts, at_least=1)
        height = answer.size.height
        assert len(layouts) == 1
        answer.refresh(layout=True)
        await pilot.pause(0.1)
        assert answer.size.height == height, "one was enough"
        assert transcript.scroll_y == transcript.max_scroll_y


async def test_no_layout_for_the_first_words(monkeypatch: pytest.MonkeyPatch) -> None:
    read, written = threading.Event(), threading.Event()
    model = FakeModel([Prefill(1, 1), read, "An", " answer", written], context=5000)
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: app.chat.activity.phase is Phase.READING)
        await pilot.pause(0.5)
        answer = app.chat.shown.answer(app.chat.conversation.path()[-1].id)
        height = answer.size.height
        layouts = count_layouts(monkeypatch)
        read.set()
        await until(pilot, lambda: answer.shown_text == "An answer")
        await pilot.pause(0.3)
        assert not layouts, "room was made for them"
        assert str(app.chat.meter.render()).endswith("/5000")
        assert answer.size.height == height
        assert str(answer.query_one(Paragraph).render()) == "An answer"
        written.set()
        await ready(pilot)


async def test_words_that_are_no_paragraph_take_its_place() -> None:
    async with make_app(FakeModel(["# A", " title"])).run_test() as pilot:
        app = await ask(pilot, "go")
        answer = app.chat.shown.answer(app.chat.conversation.path()[-1].id)
        await until(pilot, lambda: bool(answer.query(MarkdownHeader)))
        await until(pilot, lambda: str(answer.query_one(MarkdownHeader).render()) == "A title")
        assert not answer.query(Paragraph)


async def test_what_comes_last_is_in_the_height_that_is_kept() -> None:
    async with make_app(FakeModel([])).run_test() as pilot:
        app = await ready(pilot)
        answer = Answer("", 1)
        await app.chat.shown.transcript.add(answer)
        await answer.expect()
        await pilot.pause(0.2)
        await answer.add("| head |\n| --- |\n| cell |\n")
        await answer.finish()  # while the table takes the paragraph's place
        await until(pilot, lambda: bool(answer.query(MarkdownTable)))
        table = answer.query_one(MarkdownTable)
        await until(pilot, lambda: table.size.height > 2)
        await pilot.pause(0.2)
        assert answer.query_one(AnswerMarkdown).size.height >= table.size.height


async def test_text_that_is_not_due_yet_follows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RefreshRate, "wait_seconds", lambda _: WAIT_SECONDS)
    first, gate, typed_by_then = threading.Event(), threading.Event(), []
    show = Answer.add
    async with make_app(FakeModel(["An", first, " answer", gate])).run_test() as pilot:
        app = await ready(pilot)

        async def add(self: Answer, text: str) -> None:
            typed_by_then.append(app.chat.prompt.text)
            await show(self, text)

        monkeypatch.setattr(Answer, "add", add)
        await say(pilot, "go")
        await until(pilot, lambda: typed_by_then == [""])  # the first token does not wait
        typed_by_then.clear()
        first.set()
        await until(pilot, lambda: len(app.chat.engine._progress.tokens) == 1)
        monkeypatch.setattr(RefreshRate, "fits_behind_key", lambda _: False)
        await pilot.press("x")
        await pilot.pause(0.1)
        assert typed_by_then == []
        monkeypatch.setattr(RefreshRate, "fits_behind_key", lambda _: True)
        await pilot.press("y")
        await until(pilot, lambda: bool(typed_by_then))
        assert typed_by_then == ["xy"]
        assert app.chat.shown.answer(app.chat.conversation.path()[-1].id).shown_text == "An answer"
        gate.set()
        await ready(pilot)


async def test_garbage_is_collected_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, collected = [], []
    since_typed = 0.0

    def seconds_since_typed(_: RefreshRate) -> float:
        asked.append(since_typed)
        return since_typed

    monkeypatch.setattr(closed_widgets, "UNCOLLECTED_BLOCKS", 1 << 30)  # not for how much it is
    monkeypatch.setattr(answering, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(RefreshRate, "seconds_since_typed", seconds_since_typed)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(since_typed))
    async with make_app(FakeModel(["An", "answer"])).run_test() as pilot:
        app = await ask(pilot, "go")
        await until(pilot, lambda: app.chat.conversation.path()[-1].finish_reason is not None)
        asked.clear()
        await until(pilot, lambda: len(asked) > 3)
        assert not collected
        since_typed = 0.05
        await until(pilot, lambda: bool(collected))
        await pilot.pause(0.2)
        assert collected == [0.05], "once"


async def test_after_several_answers_it_is_collected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Timer] = []
    async with make_app(FakeModel(["An", "answer"])).run_test() as pilot:
        app = await ready(pilot)
        set_timer = app.chat.set_timer

        def remember(seconds: float, callback: Any) -> Timer:
            timer = set_timer(seconds, callback)
            if callback == app.chat.answering._collect_when_quiet:
                begun.append(timer)
            return timer

        monkeypatch.setattr(app.chat, "set_timer", remember)
        monkeypatch.setattr(answering, "QUIET_SECONDS", WAIT_SECONDS)  # none is over meanwhile
        for _ in range(3):
            await ask(pilot, "go")
        await until(pilot, lambda: len(begun) == 3)
        assert [timer._task is None for timer in begun] == [True, True, False]


def test_meanwhile_it_is_collected_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    before, meanwhile = gc.get_threshold(), []
    app = make_app(FakeModel([]))
    monkeypatch.setattr(app, "run", lambda **_: meanwhile.append(gc.get_threshold()))
    run_app(app)
    assert meanwhile == [(*before[:2], FULL_COLLECTION_EVERY)]
    assert gc.get_threshold() == before
