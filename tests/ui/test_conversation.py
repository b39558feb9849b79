"""What of a conversation is sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm.errors import UsageError
from flashllm.template import Message
from flashllm.ui.conversation import Conversation, fit


def encode(messages: Sequence[Message]) -> list[int]:
    return [0] * sum(len(message["content"]) for message in messages)


def talk(*lengths: int) -> list[Message]:
    conversation = Conversation()
    for index, length in enumerate(lengths):
        add = conversation.answer if index % 2 else conversation.ask
        add("x" * length)
    return conversation.messages


def test_what_fits_is_sent_whole() -> None:
    assert fit(talk(10, 10, 10), "", encode, 40, 100).dropped == 0


def test_the_oldest_turns_go_first_and_the_system_prompt_stays() -> None:
    fitted = fit(talk(10, 10, 8, 8, 5), "s" * 7, encode, 40, 100)
    assert fitted.dropped == 2
    assert len(fitted.ids) == 7 + 8 + 8 + 5


def test_room_for_the_answer_is_small_when_the_answer_is() -> None:
    assert fit(talk(39), "", encode, 40, 1).dropped == 0


def test_one_message_may_take_the_answers_room_but_not_more() -> None:
    assert len(fit(talk(39), "", encode, 40, 100).ids) == 39
    with pytest.raises(UsageError, match="this message has 40 tokens, and the context holds 40"):
        fit(talk(40), "", encode, 40, 100)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9).filter(lambda n: len(n) % 2 == 1))
def test_what_is_sent_fits_and_ends_with_the_question(lengths: list[int]) -> None:
    messages = talk(*lengths)
    try:
        fitted = fit(messages, "", encode, 40, 20)
    except UsageError:
        assert lengths[-1] >= 40
        return
    assert fitted.dropped % 2 == 0
    assert fitted.ids == encode(messages[fitted.dropped :])
    assert len(fitted.ids) < 40


def test_a_question_taken_back_is_not_sent_again() -> None:
    conversation = Conversation()
    conversation.ask("a")
    conversation.answer("b")
    conversation.ask("c")
    assert conversation.take_back() == "c"
    assert [message["content"] for message in conversation.ask("d")] == ["a", "b", "d"]
    conversation.dropped = 2
    assert [message["content"] for message in conversation.ask("e")] == ["d", "e"]
    conversation.clear()
    assert [message["content"] for message in conversation.ask("f")] == ["f"]
