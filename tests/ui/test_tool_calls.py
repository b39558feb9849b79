"""Calls of tools: seen for what they are, and never run."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm.ui.transcript.answer import Answer
from flashllm.ui.transcript.tool_calls import ToolCallFormatter
from tests.support.chat_pilot import ask, make_app, screen_text
from tests.support.fake_engine import FakeModel
from tests.support.screens import until

BEGIN = "*asked for a tool, which is never run:*\n\n~~~~~~\n"
MARKED = st.lists(
    st.sampled_from(["<tool_call>", "</tool_call>", "<tool", "\n", " ", "a", "<", "```", "~~"]),
    max_size=10,
).map("".join)


def shown(*pieces: str) -> str:
    formatter = ToolCallFormatter()
    return "".join([formatter.feed(piece) for piece in pieces]) + formatter.end()


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Plain.", "Plain."),
        ("<tool_call>\nf {}\n</tool_call>\nYes.", f"{BEGIN}f {{}}\n~~~~~~\n\n\nYes."),
        ("I look.\n\n <tool_call>{}", f"I look.\n\n {BEGIN}{{}}"),
        ("The mark <tool_call> is inside.", "The mark <tool_call> is inside."),
        ("```\n<tool_call>\n```\n<tool_call>", f"```\n<tool_call>\n```\n{BEGIN}"),
        ("~~~\n```\n<tool_call>\n~~~\n", "~~~\n```\n<tool_call>\n~~~\n"),
        ("<tool_call>a</tool_call><tool_call>b", f"{BEGIN}a\n~~~~~~\n\n{BEGIN}b"),
        ("<tool", "<tool"),
        ("a\n``", "a\n``"),
        ("</tool_call>", "</tool_call>"),
    ],
)
def test_a_call_is_a_block_of_code(text: str, markdown: str) -> None:
    assert shown(text) == markdown
    assert shown(*text) == markdown


@given(MARKED, st.lists(st.integers(0, 40), max_size=6))
def test_wherever_the_text_is_cut(text: str, places: list[int]) -> None:
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    assert shown(*[text[begin:end] for begin, end in pairwise(cuts)]) == shown(text)


async def test_a_call_is_shown_and_kept() -> None:
    call = ["<tool_call>", "\n", '{"name": "f"}', "\n</tool_", "call>"]
    script = ["<think>", "I need f.", "</think>", "\n\n", "I look.\n\n", *call]
    async with make_app(FakeModel(script)).run_test(size=(80, 24)) as pilot:
        app = await ask(pilot, "What is f?")
        await until(pilot, lambda: '{"name": "f"}' in screen_text(app))
        assert "asked for a tool, which is never run:" in screen_text(app)
        assert "tool_call>" not in screen_text(app)
        turn = app.chat.conversation.path()[-1]
        assert turn.text.endswith('<tool_call>\n{"name": "f"}\n</tool_call>')
        # The same as of a conversation that is opened again.
        kept = Answer(turn.text, 99)
        await app.chat.shown.transcript.add(kept)
        await until(pilot, lambda: kept.source != "")
        assert kept.source == app.query(Answer).first(Answer).source
