"""What a model thinks before its answer: seen while it thinks, then folded to a line."""

from __future__ import annotations

import threading

from textual.widget import Widget

from flashllm.ui.transcript.answer import Answer
from flashllm.ui.transcript.markdown import Paragraph
from flashllm.ui.transcript.reasoning import Reasoning
from tests.support.chat_pilot import ask, make_app, ready, say, screen_text
from tests.support.fake_engine import FakeModel
from tests.support.screens import until

THOUGHT = "First this, then that. " * 30


def paragraphs(answer: Answer) -> list[str]:
    return [str(part.content) for part in answer.query(Paragraph).results(Paragraph)]


def shown(answer: Answer) -> str:
    (reasoning,) = answer.query(Reasoning).results(Reasoning)
    return str(reasoning.content)


async def test_thinking_is_seen_and_then_folded() -> None:
    gate = threading.Event()
    script = [
        "<think>",
        "\n",
        THOUGHT,
        "so it",
        " is.",
        gate,
        "\n</think>",
        "\n\n",
        "Yes.",
        " Indeed.",
    ]
    async with make_app(FakeModel(script)).run_test(size=(80, 24)) as pilot:
        app = await ready(pilot)
        await say(pilot, "Is it?")
        await until(pilot, lambda: "so it is." in screen_text(app))
        answer = app.query_one(Answer)
        assert shown(answer).startswith("▸ thinking, 123 words\n… ")
        assert len(shown(answer)) < 400, "the end of it"
        await pilot.click(Reasoning)
        assert shown(answer) == f"▾ thinking, 123 words\n{THOUGHT}so it is."
        await pilot.click(Reasoning)
        gate.set()
        await until(pilot, lambda: paragraphs(answer) == ["Yes. Indeed."])
        assert shown(answer) == "▸ thought, 123 words; a click or /thoughts shows it"
        assert "think>" not in screen_text(app)
        await pilot.click(Reasoning)
        assert shown(answer) == f"▾ thought, 123 words\n{THOUGHT}so it is."
        await pilot.click(Reasoning)
        assert shown(answer).startswith("▸ thought")
        turn = app.chat.conversation.path()[-1]
        assert turn.text.startswith("<think>\nFirst"), "templates look for the marks"


async def test_two_changes_around_a_layout_are_both_laid_out() -> None:
    """Textual's cache of sizes does not see the second, where the first was not noticed yet."""
    async with make_app(FakeModel(["<think>\nHm.\n</think>\n\nYes."])).run_test() as pilot:
        app = await ask(pilot, "Is it?")
        await until(pilot, lambda: bool(app.query(Reasoning)))
        thought = app.query_one(Reasoning)
        thought.fold(True)
        await until(pilot, lambda: thought.size.height == 2)
        thought.add("\none")
        for parent in thought.ancestors:  # as for a neighbour that became higher
            if isinstance(parent, Widget):
                parent._clear_arrangement_cache()
                parent._layout_updates += 1
        app.screen._refresh_layout()
        assert thought.size.height == 4
        thought.add("\ntwo\nthree")
        await until(pilot, lambda: thought.size.height == 6)
        assert "three" in screen_text(app)


async def test_a_prompt_that_ended_in_the_mark() -> None:
    script = ["Hm,", " so.", "\n", "</think>", "\n\n", "No."]
    async with make_app(FakeModel(script)).run_test(size=(80, 24)) as pilot:
        app = await ask(pilot, "Is it?")
        answer = app.query_one(Answer)
        await until(pilot, lambda: paragraphs(answer) == ["No."])
        assert shown(answer) == "▸ thought, 2 words; a click or /thoughts shows it"


async def test_all_are_opened_and_folded_at_once() -> None:
    script = ["<think>one</think>", "\nA."], ["<think>two</think>", "\nB."], ["plain"]
    async with make_app(FakeModel(*script)).run_test(size=(80, 40)) as pilot:
        for number in range(3):
            app = await ask(pilot, f"question {number}")
        first, second, third = app.query(Answer).results(Answer)
        await say(pilot, "/thoughts")
        await until(pilot, lambda: shown(first) == "▾ thought, 1 word\none")
        assert shown(second) == "▾ thought, 1 word\ntwo"
        assert not third.query(Reasoning)
        await ask(pilot, "one more")
        await say(pilot, "/thoughts")
        await until(pilot, lambda: shown(first).startswith("▸ thought"))


async def test_an_answer_that_only_thinks_says_so() -> None:
    async with make_app(FakeModel(["<think>", "on and", " on"])).run_test(size=(80, 24)) as pilot:
        app = await ask(pilot, "Is it?")
        answer = app.query_one(Answer)
        words = "▸ thought, 3 words, and came to no answer; a click or /thoughts shows it"
        await until(pilot, lambda: shown(answer) == words)
        await pilot.click(Reasoning)
        assert shown(answer) == "▾ thought, 3 words, and came to no answer\non and on"
        await pilot.click(Reasoning)
        assert "".join(paragraphs(answer)) == ""
        await answer.add(" still")
        assert shown(answer) == "▸ thinking, 4 words\non and on still"
        await answer.add("</think>Yes.")
        await answer.finish()
        assert shown(answer) == "▸ thought, 4 words; a click or /thoughts shows it"
        await until(pilot, lambda: paragraphs(answer)[-1] == "Yes.")


async def test_an_answer_is_copied_without_what_was_thought() -> None:
    copied: list[str] = []
    script = ["<think>", "`no`", "</think>", "\n\n", "Use `yes`."]
    async with make_app(FakeModel(script)).run_test(size=(80, 24)) as pilot:
        app = await ask(pilot, "How?")
        app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        await say(pilot, "/copy")
        await until(pilot, lambda: copied == ["Use `yes`."])


async def test_a_kept_answer_is_folded() -> None:
    async with make_app(FakeModel([])).run_test(size=(80, 24)) as pilot:
        app = await ready(pilot)
        answer = Answer("<think>\nhm\n</think>\n\n# Title\n\nText.", 1)
        await app.chat.shown.transcript.add(answer)
        await until(pilot, lambda: "Title" in screen_text(app))
        assert shown(answer) == "▸ thought, 1 word; a click or /thoughts shows it"
        await answer.add(" More.")
        await answer.finish()
        await until(pilot, lambda: paragraphs(answer)[-1] == "Text. More.")
