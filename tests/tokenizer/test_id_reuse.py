"""An answer's own ids in place of those of its text: the same text, and the prompt begins alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashllm.tokenizer.chat_template import Message
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.chat_templates import CHATML
from tests.support.tokenizer_files import LOSSLESS, MAKERS, make_byte_level, write_config

TEXTS = ("An ocean is a large body of water.", "Köln: x == y;\n\nnaïve", "7 7  你好")
PLAIN = "plain"
BYTE_LEVEL = ("byte-level", "vocab-and-merges")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Tokenizer]:
    """Each kind with a template and without one."""
    found = {}
    for kind in MAKERS:
        directory: Path = tmp_path_factory.mktemp(kind)
        MAKERS[kind](directory)
        for name, template in (("chatml", CHATML), (PLAIN, None)):
            write_config(directory, template)
            tokenizer = load_tokenizer(directory)
            assert tokenizer is not None
            found[kind, name] = tokenizer
    return found


def chat(*contents: str) -> list[Message]:
    return [
        {"role": "assistant" if number % 2 else "user", "content": content}
        for number, content in enumerate(contents)
    ]


def raw(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(tokenizer.vocabulary.piece_bytes(token) for token in ids)


def controls(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    previous_ids = set(tokenizer.vocabulary.control_ids.values())
    return [token for token in ids if token in previous_ids]


def spelled(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """The text in the shortest pieces there are, as no tokenizer would."""
    previous_ids = set(tokenizer.vocabulary.control_ids.values())
    pieces: dict[bytes, int] = {}
    for token in range(tokenizer.vocab_size):
        if token not in previous_ids:
            pieces.setdefault(tokenizer.vocabulary.piece_bytes(token), token)
    ids = []
    while text:
        size = next(size for size in range(1, len(text) + 1) if text[:size] in pieces)
        ids.append(pieces[text[:size]])
        text = text[size:]
    return ids


def written(tokenizer: Tokenizer, before: list[int], talk: list[Message]) -> bytes:
    """The bytes that a model has to write behind `before` for its answer to be read as it is."""
    whole = raw(tokenizer, tokenizer.encode_chat(talk))[len(raw(tokenizer, before)) :]
    answer = talk[-2]["content"].encode()
    return whole[: whole.index(answer) + len(answer)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("kind", "template"),
    # Without a marker in front of the answer only where no piece goes over its beginning.
    [*((kind, "chatml") for kind in LOSSLESS), *((kind, PLAIN) for kind in BYTE_LEVEL)],
)
def test_the_prompt_begins_as_the_context_does(
    loaded: dict[tuple[str, str], Tokenizer], kind: str, template: str, text: str
) -> None:
    tokenizer = loaded[kind, template]
    talk = chat("What does ocean mean?", text, "And naïve?")
    before = tokenizer.encode_chat(talk[:1])
    own = spelled(tokenizer, written(tokenizer, before, talk))
    usual = tokenizer.encode_chat(talk)
    ids = tokenizer.encode_chat(talk, {1: own})
    assert ids != usual, "another spelling"
    assert ids[: len(before) + len(own)] == before + own
    assert raw(tokenizer, ids) == raw(tokenizer, usual)
    # A turn later both answers are known, and the prompt grows at its end alone.
    longer = [*talk, *chat("", text)[1:], *chat("user")]
    again = spelled(tokenizer, written(tokenizer, ids, longer))
    grown = tokenizer.encode_chat(longer, {1: own, 3: again})
    assert grown[: len(ids) + len(again)] == ids + again
    assert raw(tokenizer, grown) == raw(tokenizer, tokenizer.encode_chat(longer))


def test_where_the_next_question_ended_the_answer(
    loaded: dict[tuple[str, str], Tokenizer],
) -> None:
    """Its ids go on into the text that follows, and stay as far as they are that text."""
    tokenizer = loaded["byte-level", PLAIN]
    talk = chat("ocean", "water", "And naïve?")
    before = tokenizer.encode_chat(talk[:1])
    own = spelled(tokenizer, b" water\nUser:")
    ids = tokenizer.encode_chat(talk, {1: own})
    assert ids[: len(before) + len(own)] == before + own
    assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode_chat(talk))


@pytest.mark.parametrize("kind", MAKERS)
def test_no_ids_change_the_text(loaded: dict[tuple[str, str], Tokenizer], kind: str) -> None:
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: Any) -> None:
        tokenizer = loaded[kind, data.draw(st.sampled_from(["chatml", PLAIN]))]
        pool = st.sampled_from([*TEXTS, "water", "<|im_end|>", "a\n ", " ocean"])
        talk = chat(data.draw(pool), data.draw(pool), data.draw(pool))
        usual = tokenizer.encode_chat(talk)
        # Pieces of what is there, what stands elsewhere, and anything at all.
        start = data.draw(st.integers(0, len(usual)))
        own = usual[start : data.draw(st.integers(start, len(usual)))]
        own += data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=4))
        ids = tokenizer.encode_chat(talk, {1: own})
        assert raw(tokenizer, ids) == raw(tokenizer, usual)
        assert controls(tokenizer, ids) == controls(tokenizer, usual)

    check()


def test_a_character_cut_off_and_control_tokens_are_left_out(
    loaded: dict[tuple[str, str], Tokenizer],
) -> None:
    tokenizer = loaded["byte-level", "chatml"]
    talk = chat("ocean", "wat", "And naïve?")
    before = tokenizer.encode_chat(talk[:1])
    own = spelled(tokenizer, b"wat")
    end = tokenizer.vocabulary.control_ids["<|im_end|>"]
    for more in (spelled(tokenizer, "ü".encode())[:1], [end], [end, *own]):
        ids = tokenizer.encode_chat(talk, {1: [*own, *more]})
        assert ids[: len(before) + len(own) + 1] == [*before, *own, end]
        assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode_chat(talk))


def test_capitals_that_the_tokenizer_drops_stay_in_an_answer(tmp_path: Path) -> None:
    """Text never encodes to the ids of a capital, and the model wrote them all the same."""
    make_byte_level(tmp_path)
    path = tmp_path / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    description["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(description), encoding="utf-8")
    # The answer is all of the text between two markers.
    write_config(
        tmp_path,
        "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>",
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    talk = chat("What does OCEAN mean?", "An Ocean is water.", "And NAIVE?")
    before = tokenizer.encode_chat(talk[:1])
    usual = tokenizer.encode_chat(talk)
    assert b"an ocean is water." in raw(tokenizer, usual)
    own = spelled(tokenizer, b"An Ocean is water.")
    ids = tokenizer.encode_chat(talk, {1: own})
    assert b"An Ocean is water." in raw(tokenizer, ids)
    assert ids[: len(before) + len(own)] == before + own
    assert controls(tokenizer, ids) == controls(tokenizer, usual)
    # Ids that spell another text, or that end the answer, are no answer of this conversation.
    for other in (spelled(tokenizer, b"An Ocean is ice."), [*own, *controls(tokenizer, usual)[:1]]):
        assert tokenizer.encode_chat(talk, {1: other}) == usual
