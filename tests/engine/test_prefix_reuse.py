"""Why a context held more than the next prompt could use."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flashllm.engine.answer import Request
from flashllm.engine.prefix_reuse import PrefixReuse
from flashllm.options import ReasoningOptions
from flashllm.tokenizer.chat_template import Message

PROMPT_TOKENS, TOKENS = 100, 130
"""Of the first prompt, and with its answer."""


def talk(*contents: str) -> list[Message]:
    return [
        {"role": "assistant" if number % 2 else "user", "content": content}
        for number, content in enumerate(contents)
    ]


def after(request: Request, answer: str, dropped: int = 0) -> PrefixReuse:
    """What is known after an answer."""
    prefix = PrefixReuse()
    prefix.open()
    generation: Any = SimpleNamespace(
        text=answer, prompt_tokens=PROMPT_TOKENS, ids=[0] * (TOKENS - PROMPT_TOKENS)
    )
    prefix.end(request, dropped, generation)
    return prefix


ASKED = Request(talk("a"), "Be brief.")
THOUGHT = "<think>hm</think>Yes."


@pytest.mark.parametrize(
    ("answer", "next_request", "reused", "reason"),
    [
        ("Yes.", replace(ASKED, messages=talk("a", "Yes.", "b")), TOKENS - 1, ""),
        (THOUGHT, replace(ASKED, messages=talk("a", THOUGHT, "b")), TOKENS, ""),
        (THOUGHT, replace(ASKED, messages=talk("a", THOUGHT, "b")), 101, "reasoning cut"),
        (THOUGHT, replace(ASKED, messages=talk("a", THOUGHT, "b")), 0, "reasoning cut"),
        ("Yes.", replace(ASKED, messages=talk("a", "Yes.", "b")), 101, ""),
        ("Yes.", replace(ASKED, system=""), 5, "system changed"),
        ("Yes.", ASKED, 99, ""),
        (THOUGHT, ASKED, 99, ""),
        ("Yes.", replace(ASKED, messages=talk("b")), 8, "other chat"),
        ("Yes.", replace(ASKED, messages=talk("a", "No.", "b")), 99, "other branch"),
        (
            THOUGHT,
            replace(
                ASKED, messages=talk("a", THOUGHT, "b"), reasoning=ReasoningOptions(effort="low")
            ),
            8,
            "new settings",
        ),
        (
            THOUGHT,
            replace(ASKED, messages=talk("a", THOUGHT, "b"), reasoning=ReasoningOptions("off")),
            99,
            "reasoning cut",
        ),
    ],
)
def test_reasons(answer: str, next_request: Request, reused: int, reason: str) -> None:
    assert after(ASKED, answer).reason(next_request, 0, reused) == reason


def test_messages_that_are_left_out() -> None:
    long = Request(talk("a", "b", "c"))
    prefix = after(long, "d")
    longer = Request(talk("a", "b", "c", "d", "e"))
    assert prefix.reason(longer, 2, 0) == "context cut"
    # From then on the conversation begins later.
    prefix = after(longer, "f", dropped=2)
    assert prefix.reason(Request(talk("c", "d", "e", "f", "g")), 0, TOKENS) == ""
    assert prefix.reason(Request(talk("c", "x", "e")), 0, 9) == "other branch"


def test_an_answer_that_goes_on() -> None:
    stopped = Request(talk("a", "Ye"), continues=True)
    assert after(ASKED, "Ye").reason(stopped, 0, TOKENS - 1) == ""
    again = Request(talk("a", "Yes.", "b"))
    assert after(stopped, "s.").reason(again, 0, TOKENS) == ""
    assert after(stopped, "n.").reason(again, 0, 99) == "other branch"


def test_a_model_that_was_opened_or_failed() -> None:
    prefix = PrefixReuse()
    assert prefix.reason(ASKED, 0, 0) == ""
    assert prefix.reason(Request(talk("a", "b", "c")), 0, 0) == "model reopened"
    prefix.lose()
    assert prefix.reason(Request(talk("a", "b", "c")), 0, 0) == ""
