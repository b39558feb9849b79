"""From a conversation to its next answer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from flashllm.conversations.tree import Conversation
from flashllm.engine.answer import Request, Started, start
from flashllm.engine.protocol import Engine
from flashllm.errors import UsageError
from tests.support.fake_engine import FakeModel, FakeTokenizer


def request(conversation: Conversation, **options: Any) -> Request:
    return Request(conversation.messages(), conversation.system, conversation.known(), **options)


def begin(model: FakeModel, conversation: Conversation, **options: Any) -> Started:
    return start(cast("Engine", model), request(conversation, **options))


def take(model: FakeModel, conversation: Conversation, question: str) -> Started:
    """One whole turn."""
    conversation.ask(question)
    started = begin(model, conversation)
    turn = conversation.begin_answer()
    turn.text = "".join(token.text for token in started.generation)
    turn.ids = tuple(started.generation.ids)
    return started


def test_the_ids_of_answers_stand_for_their_text_and_are_reused() -> None:
    model = FakeModel(["o", "ne"], ["two"])
    conversation = Conversation("Be brief.")
    take(model, conversation, "a b")
    second = take(model, conversation, "c")
    assert model.tokenizer is not None
    first_answer = [model.tokenizer.id_of("o"), model.tokenizer.id_of("ne")]
    assert model.tokenizer.known == [{}, {2: first_answer}]
    # "Be brief." and "a b" with a mark in front of each; what was answered has none in the prompt.
    assert second.generation.reused_tokens == 3 + 3
    assert second.generation.prompt_tokens == 3 + 3 + 3 + 2


def test_stop_strings_asked_for_come_before_the_templates() -> None:
    class Tokenizer(FakeTokenizer):
        chat_stops = ("<end>",)

    model = FakeModel(["x"], tokenizer=Tokenizer())
    conversation = Conversation()
    conversation.ask("a")
    begin(model, conversation, stop=("b",), max_tokens=7)
    assert model.requests[0]["stop"] == ("b", "<end>")
    assert model.requests[0]["max_tokens"] == 7


def test_an_answer_that_goes_on_is_sent_as_the_ids_it_was_made_of() -> None:
    model = FakeModel(["the ", "an", "swer"], [" goes on"])
    conversation = Conversation()
    take(model, conversation, "a")
    begin(model, conversation, continues=True)
    first, second = model.requests
    assert model.tokenizer is not None
    ids = [model.tokenizer.id_of(piece) for piece in ("the ", "an", "swer")]
    assert second["ids"] == first["ids"] + ids
    assert (first["answer"], second["answer"]) == (0, 3)


@pytest.mark.parametrize("ids", [(), (1, 2), (1 << 20,)], ids=["none", "others", "another model's"])
def test_ids_that_are_not_the_texts_do_not_stand_for_it(ids: tuple[int, ...]) -> None:
    model = FakeModel(["x"])
    conversation = Conversation()
    conversation.ask("a")
    turn = conversation.begin_answer()
    turn.text, turn.ids = "two words", ids
    begin(model, conversation, continues=True)
    assert model.tokenizer is not None
    assert model.requests[0]["ids"][-2:] == model.tokenizer.encode("two words")
    assert model.requests[0]["answer"] == 2


def test_the_oldest_messages_are_left_out_and_counted() -> None:
    model = FakeModel(["word"], context=40)
    conversation = Conversation()
    conversation.ask("a " * 25)
    conversation.begin_answer().text = "b " * 5
    conversation.ask("c")
    assert begin(model, conversation).dropped == 2
    assert len(model.requests[0]["ids"]) == 2


def test_an_answer_cannot_go_on_in_a_context_that_is_full() -> None:
    model = FakeModel(["x"], context=20)
    conversation = Conversation()
    conversation.ask("a")
    conversation.begin_answer().text = "b " * 18
    with pytest.raises(UsageError, match="the context is full"):
        begin(model, conversation, continues=True)
    assert model.requests == []


def test_a_model_without_a_tokenizer_cannot_be_talked_to() -> None:
    model = FakeModel(["x"])
    model.has_tokenizer = False
    conversation = Conversation()
    conversation.ask("a")
    with pytest.raises(UsageError, match="without a tokenizer"):
        begin(model, conversation)
