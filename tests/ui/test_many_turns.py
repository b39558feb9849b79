"""A chat of many turns: what is mounted and what is kept by turn stay bounded."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pytest
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual._segment_tools import make_blank
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widget import Widget

from flashllm.options import DEFAULT_REASONING, ReasoningOptions
from flashllm.ui import closed_widgets
from flashllm.ui.app import ChatApp
from flashllm.ui.chat import answering
from flashllm.ui.closed_widgets import GarbageWatch, forget_closed_widgets
from flashllm.ui.run import FULL_COLLECTION_EVERY
from flashllm.ui.transcript.transcript import (
    FAR_LEAST,
    MOUNTED_AT_ONCE,
    NEAR_SCREENS,
    Transcript,
)
from flashllm.ui.transcript.turn import Question
from tests.support.chat_pilot import ask, make_app, ready, screen_text
from tests.support.fake_engine import FakeModel, FakeTokenizer
from tests.support.screens import WAIT_SECONDS, until

TURNS = 60
SETTLED = 25
"""By then there are as many widgets as there will be."""
SIZE = (80, 16)
MOUNTED_MAX = 2 * MOUNTED_AT_ONCE + FAR_LEAST
LOOKS = 5
"""So often the screen has to be the same before it is held to stay so."""
OBJECTS_PER_TURN = 300
"""Most of them are cached lines of the screen; one widget has as many."""
CACHED_MORE_MAX = 50
"""What styles and keys come late; every turn has more texts of its own than that."""


class ForgetfulTokenizer(FakeTokenizer):
    """Remembers no conversation: what grows is the chat's own."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        known: Mapping[int, Sequence[int]] | None = None,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
    ) -> list[int]:
        self.conversations.clear()
        self.known.clear()
        return super().encode_chat(messages[-1:])


async def asked(pilot: Pilot[None], model: FakeModel, first: int, last: int) -> ChatApp:
    app = await ready(pilot)
    for number in range(first, last + 1):
        await ask(pilot, f"question {number}")
        model.requests.clear()
    await pilot.pause(0.3)
    return app


async def reopened(pilot: Pilot[None], turns: int = TURNS) -> ChatApp:
    """A conversation as it was kept, shown."""
    app = await ready(pilot)
    for number in range(1, turns + 1):
        app.chat.conversation.ask(f"question {number}")
        turn = app.chat.conversation.begin_answer()
        turn.text, turn.finish_reason = "An answer", "stop"
    await app.chat.shown.refresh()
    await until(pilot, lambda: f"question {turns}" in screen_text(app))
    return app


def mounted(app: ChatApp) -> list[int]:
    return [view.turn_id for view in app.query_one(Transcript).views()]


def alive() -> tuple[int, int]:
    """Widgets, and all objects, once what has gone is gone."""
    gc.collect()
    found = gc.get_objects()
    # By type alone: isinstance asks each object for its class, and torch has some that warn then.
    return sum(issubclass(type(one), Widget) for one in found), len(found)


def cached() -> Counter[str]:
    """How much functions of Textual and Rich remember, by name, when nobody waits."""
    forget_closed_widgets()
    found: Counter[str] = Counter()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("textual", "rich"):
            continue
        kinds = [one for one in vars(module).values() if isinstance(one, type)]
        for holder in (module, *kinds):
            for one in vars(holder).values():
                function = getattr(one, "__func__", one)
                if isinstance(function, functools._lru_cache_wrapper):
                    place = f"{function.__module__}.{function.__qualname__}"
                    found[place] = function.cache_info().currsize
    return found


def consecutive(turns: list[int]) -> bool:
    return turns == list(range(turns[0], turns[-1] + 1))


@pytest.mark.usefixtures("footer")
async def test_after_many_turns_there_is_no_more_than_after_some() -> None:
    model = FakeModel(["An answer", " of *some*", " words."], tokenizer=ForgetfulTokenizer())
    async with make_app(model).run_test(size=SIZE) as pilot:
        app = await asked(pilot, model, 1, SETTLED)
        widgets, objects = alive()
        before = cached()
        await asked(pilot, model, SETTLED + 1, TURNS)
        more = cached() - before
        assert more.total() <= CACHED_MORE_MAX, more.most_common(5)
        assert len(mounted(app)) <= MOUNTED_MAX
        assert mounted(app)[-1] == 2 * TURNS
        assert consecutive(mounted(app))
        more_widgets, more_objects = alive()
        # Of eight turns some may be there, or not: they go together.
        assert more_widgets <= widgets + 8 * 4
        assert more_objects - objects < OBJECTS_PER_TURN * (TURNS - SETTLED)
        assert f"question {TURNS}" in screen_text(app)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: not mounted(app))
        await pilot.pause(0.2)
        # Four widgets are a question and its answer.
        assert alive()[0] < widgets - 4 * MOUNTED_AT_ONCE // 2, "what was said before has gone"
        assert not app.chat.panels.tokens.turns


@pytest.fixture
def no_garbage_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_by_itself")
async def test_pages_that_were_closed_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their widgets refer to each other; nobody has to ask anything for them to go."""
    async with make_app(FakeModel(["x"])).run_test(size=(80, 30)) as pilot:
        app = await ready(pilot)
        monkeypatch.setattr(answering, "QUIET_SECONDS", 0.5)
        monkeypatch.setattr(app.chat.answering._rate, "seconds_since_typed", lambda: 1.0)
        for _ in range(2):
            await pilot.press("f1")
            await until(pilot, lambda: len(app.screen_stack) == 2)
            page = weakref.ref(app.screen)
            drawn = [weakref.ref(one._styles_cache) for one in app.screen.query("*")]
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
        await until(pilot, lambda: page() is None)
        assert drawn
        assert not [one for one in drawn if one() is not None], "the lines that they drew"


@pytest.fixture
def collected_when_told() -> Iterator[None]:
    """As while the chat runs: no full collection comes by itself."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], FULL_COLLECTION_EVERY)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("no_garbage_by_itself")
async def test_what_is_gone_goes_before_a_page_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "QUIET_SECONDS", WAIT_SECONDS)
    async with make_app(FakeModel(["x"])).run_test(size=(80, 30)) as pilot:
        app = await ready(pilot)
        for _ in range(2):
            await pilot.press("f1")
            await until(pilot, lambda: len(app.screen_stack) == 2)
            page = weakref.ref(app.screen)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
        assert page() is not None, "nobody was quiet"
        await pilot.press("f1")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        assert page() is None


@pytest.mark.usefixtures("collected_when_told")
async def test_pages_do_not_wait_for_a_quiet_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is quiet here, nor is anything answered; still only the last pages take memory."""
    monkeypatch.setattr(closed_widgets, "UNCOLLECTED_BLOCKS", 10_000)
    monkeypatch.setattr(answering, "QUIET_SECONDS", WAIT_SECONDS)
    async with make_app(FakeModel(["x"])).run_test(size=(80, 30)) as pilot:
        app = await ready(pilot)
        pages = []
        for _ in range(5):
            await pilot.press("f1")
            await until(pilot, lambda: len(app.screen_stack) == 2)
            pages.append(weakref.ref(app.screen))
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
        assert sum(page() is not None for page in pages) <= 3


async def test_many_more_blocks_are_told_once_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    watch = GarbageWatch(lambda: told.append(threading.get_ident()))
    monkeypatch.setattr(closed_widgets, "UNCOLLECTED_BLOCKS", 40_000)
    watch.start(asyncio.get_running_loop())
    try:
        gc.collect()
        held = [[number] for number in range(5_000)]
        await asyncio.sleep(0)
        assert not told
        thread = threading.Thread(target=lambda: held.extend([0] for _ in range(60_000)))
        thread.start()
        thread.join()  # the loop waits here, so it is told of several collections at once
        await asyncio.sleep(0)
        assert told == [threading.get_ident()]
        gc.collect()
        assert not watch.is_due, "they are in use"
    finally:
        watch.stop()
    assert watch._look not in gc.callbacks


def test_texts_cuts_and_styles_that_are_gone_are_forgotten() -> None:
    for number in range(100):
        segment = Segment(f"gone {number}", Style(meta={"offset": (number, 0)}))
        assert cell_len(segment.text) < len("gone 1000")
        segment.split_cells(2)
        make_blank(number, segment.style)
        Strip.render_ansi(segment.style, ColorSystem.TRUECOLOR)
    kept = cached()
    for place in ("cells.cached_cell_len", "segment.Segment._split_cells"):
        assert kept[f"rich.{place}"] == 0
    for place in ("_segment_tools.make_blank", "strip.Strip.render_ansi"):
        assert kept[f"textual.{place}"] == 0


async def test_old_turns_come_back_where_the_reader_scrolls_to_them() -> None:
    async with make_app(FakeModel(["An answer"])).run_test(size=SIZE) as pilot:
        app = await reopened(pilot)
        transcript, seen = app.query_one(Transcript), _questions(app)
        for _ in range(TURNS):
            above = max(_questions(app))
            transcript.scroll_page_up(animate=False)
            await _settle(pilot)
            seen |= _questions(app)
            assert consecutive(mounted(app))
            assert len(mounted(app)) <= MOUNTED_MAX + 2 * MOUNTED_AT_ONCE
            assert above - max(_questions(app)) <= 6, "a page is no more"
            if 1 in seen:
                break
        assert seen == set(range(1, TURNS + 1)), "none was passed over"
        assert 2 * TURNS not in mounted(app), "what is far below has gone"
        seen -= _questions(app)
        for _ in range(TURNS):
            transcript.scroll_page_down(animate=False)
            await _settle(pilot)
            seen -= _questions(app)
            assert consecutive(mounted(app))
            if TURNS in _questions(app):
                break
        assert not seen
        assert mounted(app)[-1] == 2 * TURNS


async def test_a_page_takes_the_place_of_turns_out_of_sight() -> None:
    async with make_app(FakeModel(["An answer"])).run_test(size=(80, 40)) as pilot:
        app = await reopened(pilot)
        await _settle(pilot)
        seen, many = _without_bar(app), len(mounted(app))
        for key in ("f1", "f6"):
            await pilot.press(key)
            await until(pilot, lambda: len(app.screen_stack) == 2)
            await until(pilot, lambda: len(app.chat.shown.transcript.views()) <= many - FAR_LEAST)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
            await _settle(pilot)
            assert _without_bar(app) == seen
            assert consecutive(mounted(app))
            views = app.chat.shown.transcript.views()
            assert -views[0].region.y >= NEAR_SCREENS * app.chat.shown.transcript.size.height


def _without_bar(app: ChatApp) -> list[str]:
    """What is on the screen, but how far down that is of what has widgets."""
    return [line[:-3] for line in screen_text(app).split("\n")]


async def test_where_the_reader_went_back_a_page_changes_nothing() -> None:
    async with make_app(FakeModel(["An answer"])).run_test(size=SIZE) as pilot:
        app = await reopened(pilot)
        app.query_one(Transcript).scroll_page_up(animate=False)
        await _settle(pilot)
        seen, before = screen_text(app), mounted(app)
        await pilot.press("f1")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await _settle(pilot)
        assert [view.turn_id for view in app.chat.shown.transcript.views()] == before
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await _settle(pilot)
        assert screen_text(app) == seen


async def test_a_question_brings_the_end_back() -> None:
    async with make_app(FakeModel(["An answer"])).run_test(size=SIZE) as pilot:
        app = await reopened(pilot)
        transcript = app.query_one(Transcript)
        await _scroll_to_the_first(pilot, app)
        transcript.action_scroll_end()
        await until(pilot, lambda: f"question {TURNS}" in screen_text(app))
        await _scroll_to_the_first(pilot, app)
        await ask(pilot, "one more")
        assert mounted(app)[-1] == 2 * TURNS + 2
        assert consecutive(mounted(app))
        await until(pilot, lambda: "one more" in screen_text(app))


async def test_one_key_goes_to_the_first_turn_and_one_to_the_last() -> None:
    async with make_app(FakeModel(["An answer"])).run_test(size=SIZE) as pilot:
        app = await reopened(pilot)
        assert 1 not in mounted(app)
        await pilot.press("tab", "home")
        await until(pilot, lambda: 1 in _questions(app))
        await _settle(pilot)
        assert 1 in _questions(app), "it stays there"
        assert consecutive(mounted(app))
        assert len(mounted(app)) <= MOUNTED_MAX
        await pilot.press("end")
        await until(pilot, lambda: TURNS in _questions(app))
        assert mounted(app)[-1] == 2 * TURNS
        app.query_one(Transcript).holds_end = True  # an answer is being written there
        await pilot.press("home")
        await _settle(pilot)
        assert mounted(app)[-1] == 2 * TURNS


async def test_keys_select_turns_that_have_no_widget_yet() -> None:
    async with make_app(FakeModel(["An answer"])).run_test(size=SIZE) as pilot:
        app = await reopened(pilot, TURNS // 2)
        transcript = app.query_one(Transcript)
        await pilot.press("tab")
        for turn in range(TURNS, 1, -1):
            assert transcript.selected == turn
            await transcript.step(-1)
            await pilot.pause()
        assert 2 * TURNS not in mounted(app)
        for turn in range(2, TURNS + 1):
            await transcript.step(1)
            await pilot.pause()
            assert transcript.selected == turn


async def test_a_screen_that_is_higher_than_what_is_mounted_gets_more() -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(80, 200)) as pilot:
        app = await reopened(pilot, 40)
        await until(pilot, lambda: len(mounted(app)) == 80)
        assert "question 40" in screen_text(app)


async def _settle(pilot: Pilot[None]) -> None:
    """Widgets came and went, and what is seen is in its place: it stays as it is for some looks."""
    looks: list[str] = []

    def is_steady() -> bool:
        looks.append(screen_text(pilot.app))
        return len(looks) >= LOOKS and len(set(looks[-LOOKS:])) == 1

    await until(pilot, is_steady)


def _questions(app: ChatApp) -> set[int]:
    """Numbers of the questions on the screen."""
    words = screen_text(app).split()
    return {
        int(number) for word, number in pairwise(words) if word == "question" and number.isdigit()
    }


async def _scroll_to_the_first(pilot: Pilot[None], app: ChatApp) -> None:
    for _ in range(TURNS):
        app.query_one(Transcript).scroll_home(animate=False)
        await pilot.pause()
        if 1 in mounted(app):
            break
    await until(pilot, lambda: 2 * TURNS not in mounted(app))
    assert app.query(Question)
