"""Answers of one plain paragraph, which have no widgets but themselves once they are complete."""

from __future__ import annotations

import threading

import pytest
from textual.widget import Widget

from flashllm.ui.chat.status import Phase
from flashllm.ui.transcript.answer import Answer
from flashllm.ui.transcript.markdown import Paragraph, plain_paragraph
from tests.support.chat_pilot import ask, make_app, notes, ready, say, screen_text
from tests.support.fake_engine import FakeModel
from tests.support.screens import until

PLAIN = [
    "An ocean is water.",
    "two lines\nof one paragraph",
    "a line  \nthat ends with two spaces",
    "spaces   between\twords",
    r"what \*looks\* like &lt;more&gt; &amp; is not",
    "<b>no tags</b>",
    "see https://example.org for it",
    "漢字 and 👍 " * 30,
]
STYLED = [
    "", " ", "**bold**", "an *em* here", "some `code`", "a [link](https://example.org)",
    "![an image](a.png)", "# title", "- item", "1. item", "one\n\ntwo", "> quoted",
    "```\ncode\n```", "    code", "| a |\n| - |\n| b |", "~~gone~~", "---",
]  # fmt: skip


def widgets(answer: Answer) -> list[Widget]:
    return list(answer.walk_children(Widget))


@pytest.mark.parametrize("text", STYLED)
def test_what_needs_widgets_is_no_plain_paragraph(text: str) -> None:
    assert plain_paragraph(text) is None


async def test_a_plain_paragraph_says_what_its_widget_would() -> None:
    async with make_app(FakeModel([])).run_test() as pilot:
        app = await ready(pilot)
        for number, text in enumerate(PLAIN, 1):
            answer = Answer("", number)
            await app.chat.shown.transcript.add(answer)
            await answer.add(text)
            await until(pilot, lambda answer=answer: bool(answer.query(Paragraph)))  # type: ignore[misc]
            paragraph = answer.query_one(Paragraph)
            plain = plain_paragraph(text)
            await until(pilot, lambda one=paragraph, two=plain: one.content == two)  # type: ignore[misc]
            await answer.finish()
            assert widgets(answer) == []
            assert answer.source == text


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
@pytest.mark.parametrize("text", PLAIN)
async def test_it_looks_the_same_without_widgets(text: str, size: tuple[int, int]) -> None:
    end = threading.Event()
    async with make_app(FakeModel([text, end])).run_test(size=size) as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        answers = app.query(Answer)
        await until(pilot, lambda: any(answer.query(Paragraph) for answer in answers))
        await until(pilot, lambda: app.chat.activity.phase is Phase.WRITING)
        await pilot.pause(0.3)
        grown = transcript_text(screen_text(app))
        end.set()
        await ready(pilot)
        await pilot.pause(0.3)
        assert [widgets(answer) for answer in app.query(Answer)] == [[]]
        assert transcript_text(screen_text(app)) == grown
        await app.chat.shown.transcript.empty()
        await app.chat.shown.refresh()
        await until(pilot, lambda: transcript_text(screen_text(app)) == grown)


def transcript_text(screen: str) -> list[str]:
    """The lines above the prompt, without the bar that tells how far is scrolled."""
    lines = [line[:-2].rstrip() for line in screen.split("\n")]
    return lines[: next(n for n, line in enumerate(lines) if "for commands" in line) - 1][1:]


async def test_an_answer_that_goes_on_has_a_document_again() -> None:
    model = FakeModel([r"one \*two\*", threading.Event(), " never"], [" three", "\n\n- four"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: "*two*" in screen_text(app))
        await pilot.press("escape")
        await ready(pilot)
        answer = app.query_one(Answer)
        assert widgets(answer) == []
        assert notes(app) == ["stopped; Enter here, or /continue, goes on"]
        assert "stopped; Enter here" in screen_text(app)
        await say(pilot, "/continue")
        await until(pilot, lambda: "four" in screen_text(app))
        await ready(pilot)
        assert answer.source == "one \\*two\\* three\n\n- four"
        assert "one *two* three" in screen_text(app)
        assert "stopped" not in screen_text(app)
        assert widgets(answer)


@pytest.mark.parametrize("text", ["plain", "- an item"])
async def test_the_note_of_an_old_answer_is_there_when_it_is_scrolled_to(text: str) -> None:
    async with make_app(FakeModel(["An answer"])).run_test(size=(80, 20)) as pilot:
        app = await ready(pilot)
        for number in range(40):
            app.chat.conversation.ask(f"question {number}")
            turn = app.chat.conversation.begin_answer()
            turn.text, turn.finish_reason = text, "length" if number == 0 else "stop"
        await app.chat.shown.refresh()
        await until(pilot, lambda: "question 39" in screen_text(app))
        await app.chat.shown.transcript.go_to_beginning()
        await until(pilot, lambda: "question 0" in screen_text(app))
        await until(pilot, lambda: "stopped at the most tokens" in screen_text(app))


async def test_a_remark_comes_changes_and_goes() -> None:
    async with make_app(FakeModel(["An answer"])).run_test() as pilot:
        app = await ask(pilot, "go")
        answer = app.query_one(Answer)
        for note in ("first", "second"):
            answer.show_note(note)
            await until(pilot, lambda note=note: note in screen_text(app))  # type: ignore[misc]
        answer.show_note("")
        await until(pilot, lambda: "second" not in screen_text(app))
        assert widgets(answer) == []
