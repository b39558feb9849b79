"""What is far from the screen takes no part in its layout, and nobody can tell."""

from __future__ import annotations

from textual.pilot import Pilot

from flashllm.ui.app import ChatApp
from flashllm.ui.transcript.markdown import AnswerMarkdown
from flashllm.ui.transcript.transcript import Transcript
from tests.support.chat_pilot import ask, make_app, ready, screen_text
from tests.support.fake_engine import FakeModel
from tests.support.screens import until

COUNT = 12
PIECES = [
    f"Paragraph {number} begins and goes on {'and on ' * 70}until it is a document of its own.\n\n"
    f"- first of {number}\n- second of {number}\n\n```\ncode {number}\n```\n\n"
    for number in range(COUNT)
]
LAST = f"code {COUNT - 1}"


def documents(app: ChatApp) -> list[AnswerMarkdown]:
    return list(app.query(AnswerMarkdown))


def taking_part(document: AnswerMarkdown) -> bool:
    return any(block.display for block in document.children)


def begun(text: str) -> set[int]:
    return {number for number in range(COUNT) if f"Paragraph {number} begins" in text}


def heights(app: ChatApp) -> list[int]:
    return [document.outer_size.height for document in documents(app)]


async def natural_heights(pilot: Pilot[None], app: ChatApp) -> list[int]:
    """Those that they have with all of their blocks, none of them kept."""
    for document in documents(app):
        document.grow()
    await pilot.pause(0.3)
    return heights(app)


async def talked(pilot: Pilot[None]) -> ChatApp:
    app = await ask(pilot, "go")
    await until(pilot, lambda: LAST in screen_text(app))
    await until(pilot, lambda: not taking_part(documents(app)[0]))
    return app


async def test_only_what_is_near_the_screen_is_laid_out() -> None:
    async with make_app(FakeModel(PIECES)).run_test(size=(100, 24)) as pilot:
        app = await talked(pilot)
        assert len(documents(app)) > 5
        near = [document for document in documents(app) if taking_part(document)]
        assert documents(app)[-1] in near
        assert len(near) <= 5
        kept = heights(app)
        assert await natural_heights(pilot, app) == kept


async def test_it_is_there_where_the_reader_goes() -> None:
    async with make_app(FakeModel(PIECES)).run_test(size=(100, 24)) as pilot:
        app = await talked(pilot)
        transcript = app.query_one(Transcript)
        transcript.scroll_home(animate=False)
        await until(pilot, lambda: "Paragraph 0 begins" in screen_text(app))
        assert "code 0" in screen_text(app)
        await until(pilot, lambda: not taking_part(documents(app)[-1]))
        transcript.scroll_end(animate=False)
        await until(pilot, lambda: LAST in screen_text(app))
        seen = begun(screen_text(app))
        while transcript.scroll_y > 0:
            transcript.scroll_page_up(animate=False)
            await pilot.pause()
            seen |= begun(screen_text(app))
        assert seen == set(range(COUNT))


async def test_another_width_gives_other_heights() -> None:
    async with make_app(FakeModel(PIECES)).run_test(size=(100, 24)) as pilot:
        app = await talked(pilot)
        wide = heights(app)
        await pilot.resize_terminal(44, 24)
        await until(pilot, lambda: sum(heights(app)) > sum(wide))
        await until(pilot, lambda: LAST in screen_text(app))
        await pilot.pause(0.3)
        narrow = heights(app)
        assert await natural_heights(pilot, app) == narrow


async def test_a_conversation_that_is_opened_again_is_light_too() -> None:
    """Its answers come whole."""
    async with make_app(FakeModel(["x"])).run_test(size=(100, 24)) as pilot:
        app = await ready(pilot)
        for number in range(3):
            app.chat.conversation.ask(f"question {number}")
            answer = app.chat.conversation.begin_answer()
            answer.text, answer.finish_reason = "".join(PIECES), "stop"
        await app.chat.shown.refresh()
        await until(pilot, lambda: LAST in screen_text(app))
        await until(pilot, lambda: not taking_part(documents(app)[0]))
        kept = heights(app)
        near = [document for document in documents(app) if taking_part(document)]
        assert documents(app)[-1] in near
        assert len(near) <= 5
        assert await natural_heights(pilot, app) == kept
