"""`Model.chat`: a list of messages, answered by the chat template, with the prefix kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flashllm
from flashllm.engine.local import Model
from flashllm.engine.sampling import Sampling
from flashllm.errors import NoTokenizer, UsageError

QUESTION: flashllm.Message = {"role": "user", "content": "What does ocean mean?"}
SYSTEM: flashllm.Message = {"role": "system", "content": "Be brief."}
DRAWN = Sampling(temperature=1.2, seed=5)


@pytest.fixture(scope="module")
def model(demo: Path) -> Iterator[Model]:
    with flashllm.open_model(demo) as opened:
        yield opened


def test_an_answer_is_that_of_the_encoded_conversation(model: Model) -> None:
    tokenizer = model.tokenizer
    ids = tokenizer.encode_chat([QUESTION])
    expected = model.generate(ids, 24, stop=tokenizer.chat_stops).complete()
    streamed = model.chat([QUESTION], max_tokens=24)
    assert "".join(token.text for token in streamed) == streamed.text == expected.text != ""
    assert streamed.ids == expected.ids
    whole = model.chat([QUESTION], max_tokens=24).complete()
    assert (whole.text, whole.finish_reason) == (expected.text, expected.finish_reason)
    assert whole.usage == flashllm.Usage(len(ids), whole.reused_tokens, len(expected.ids))


def test_text_is_encoded(model: Model) -> None:
    ids = model.tokenizer.encode("The sea is")
    assert model.generate("The sea is", 8).complete().ids == model.generate(ids, 8).complete().ids


def test_one_stop_may_be_a_text(model: Model) -> None:
    whole = model.chat([QUESTION], max_tokens=24).complete().text
    stop = whole[3:6]
    for stops in (stop, [stop]):
        answer = model.chat([QUESTION], max_tokens=24, stop=stops).complete()
        assert (answer.text, answer.finish_reason) == (whole[: whole.index(stop)], "stop")
    ids = model.tokenizer.encode_chat([QUESTION])
    assert model.generate(ids, 24, stop=stop).complete().text == whole[: whole.index(stop)]


def test_the_system_prompt_comes_first_and_counts(model: Model) -> None:
    ids = model.tokenizer.encode_chat([SYSTEM, QUESTION])
    answer = model.chat([SYSTEM, QUESTION], max_tokens=8)
    assert answer.prompt_tokens == len(ids)
    assert answer.complete().ids == model.generate(ids, 8).complete().ids


def test_a_turn_reads_only_what_is_new(model: Model) -> None:
    messages: list[flashllm.Message] = [QUESTION]
    first = model.chat(messages, max_tokens=12, sampling=DRAWN).complete()
    messages += [first.message, {"role": "user", "content": "And river?"}]
    second = model.chat(messages, max_tokens=12, sampling=DRAWN).complete()
    # The last token is drawn and not computed, the mark of the end may not have been drawn.
    assert second.reused_tokens >= first.prompt_tokens + len(first.ids) - 1
    assert json.loads(json.dumps(messages)) == [dict(message) for message in messages]


def test_a_message_remembers_the_ids_it_was_generated_with(model: Model) -> None:
    """The model may spell a text otherwise than the tokenizer would."""
    tokenizer = model.tokenizer
    text, usual = "water", tokenizer.encode("water")[len(tokenizer.encode("")) :]
    first = tokenizer.encode("w")[len(tokenizer.encode("")) :]
    pieces = {tokenizer.piece_bytes(id_): id_ for id_ in range(tokenizer.vocab_size)}
    spelt = first + [pieces[letter.encode()] for letter in text[1:]]
    assert tokenizer.decode(spelt) == text
    assert len(spelt) > len(usual)
    lengths = [
        model.chat([QUESTION, flashllm.AnswerMessage(text, ids), QUESTION]).prompt_tokens
        for ids in (spelt, ())
    ]
    assert lengths[0] - lengths[1] == len(spelt) - len(usual)


def test_ids_of_another_text_are_not_used(model: Model) -> None:
    message = model.chat([QUESTION], max_tokens=16).complete().message
    message["content"] = "something else"
    plain: flashllm.Message = {"role": "assistant", "content": "something else"}
    talks = [[QUESTION, one, QUESTION] for one in (message, plain)]
    one, other = (model.chat(talk, max_tokens=8).complete() for talk in talks)
    assert (one.prompt_tokens, one.ids) == (other.prompt_tokens, other.ids)


def test_a_stopped_answer_goes_on(model: Model) -> None:
    whole = model.chat([QUESTION], max_tokens=20, sampling=DRAWN).complete()
    begun = model.chat([QUESTION], max_tokens=20, sampling=DRAWN)
    for _ in range(6):
        next(begun)
    begun.close()
    more = model.chat([QUESTION, begun.message], max_tokens=14, sampling=DRAWN).complete()
    assert begun.ids + more.ids == whole.ids
    assert more.message == whole.message
    assert more.message.ids == whole.message.ids


def test_a_begun_answer_without_ids_goes_on_too(model: Model) -> None:
    begun: flashllm.Message = {"role": "assistant", "content": "ocean (noun):"}
    more = model.chat([QUESTION, begun], max_tokens=5).complete()
    assert more.message["content"] == "ocean (noun):" + more.text
    assert len(more.ids) == 5


def test_what_does_not_fit_is_left_out_and_counted(demo: Path) -> None:
    with flashllm.open_model(demo, context=64) as small:
        talk: list[flashllm.Message] = []
        for number in range(8):
            talk += [
                {"role": "user", "content": f"What does word {number} mean?"},
                {"role": "assistant", "content": "It means something."},
            ]
        answer = small.chat([*talk, QUESTION], max_tokens=8)
        assert answer.dropped_messages > 0
        assert answer.prompt_tokens <= 64 // 2
        with pytest.raises(UsageError, match="shorten it"):
            small.chat([{"role": "user", "content": "word " * 200}])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("What does ocean mean?", "a list of messages"),
        ({"role": "user", "content": "x"}, "a list of messages"),
        ([], "the conversation is empty"),
        ([SYSTEM], "a system prompt only"),
        (["x"], "message 0 is 'x'; expected a mapping"),
        ([QUESTION, {"role": "robot", "content": "x"}], "message 1: unknown role 'robot'"),
        ([{"role": "user"}], "message 0: has no content"),
        ([{"role": "user", "content": ["x"]}], "message 0: has no content"),
    ],
)
def test_messages_that_are_none(model: Model, messages: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        model.chat(messages)
    assert len(model.chat([QUESTION], max_tokens=2).complete().ids) == 2, "nothing is held"


def test_a_model_without_a_tokenizer_says_what_it_takes(sparse_model: Path) -> None:
    with flashllm.open_model(sparse_model) as ids_only:
        assert not ids_only.has_tokenizer
        for use in (
            lambda: ids_only.tokenizer,
            lambda: ids_only.chat([QUESTION]),
            lambda: ids_only.generate("The sea is"),
            lambda: ids_only.generate([5], stop=["x"]),
        ):
            with pytest.raises(NoTokenizer, match="came without"):
                use()
        assert len(ids_only.generate([5], 3).complete().ids) == 3
