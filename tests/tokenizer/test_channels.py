"""Answers in channels: told with the marks that all answers have, wherever they are cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _compile_jinja_template

from flashllm.options import ReasoningOptions
from flashllm.tokenizer.channels import HEADER_CHARACTERS_MAX
from flashllm.tokenizer.chat_template import Message, render_template
from flashllm.tokenizer.reasoning import ReasoningSplitter, split, told
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.chat_templates import CHANNELS, CHATML
from tests.support.tokenizer_files import CHANNEL_MARKERS, make_channels

QUESTION: Message = {"role": "user", "content": "What does ocean mean?"}
TEXTS = st.text("abc <|>/{}\n", min_size=1, max_size=12).filter(
    lambda text: bool(text.strip()) and "<think" not in text and "</think" not in text
)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("channels")
    make_channels(directory, CHANNELS)
    found = load_tokenizer(directory)
    assert found is not None
    return found


def ids_of(tokenizer: Tokenizer, written: str) -> list[int]:
    """The ids of what a model wrote, markers included."""
    return tokenizer._encode_parts(
        tokenizer._controls.get(part, part)
        for part in tokenizer._markers.split(written)  # type: ignore[union-attr]
    )


def controls(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [token for token in ids if token in tokenizer._control_tokens]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.", "<think>\nHm.\n</think>\n\nYes."),
        (f"{FINAL}Yes.", "Yes."),
        ("<|message|>Yes.", "Yes."),
        ("<|channel|>final <|constrain|>json<|message|>{}", "{}"),
        (f"{ANALYSIS}Hm.", "<think>\nHm."),
        (f"{ANALYSIS}Hm.<|end|>", "<think>\nHm."),
        (f"{ANALYSIS}Hm.{NEXT}<|channel|>fin", "<think>\nHm."),
        (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c", "<think>\na\n\nb\n</think>\n\nc"),
        (
            f"{ANALYSIS}Hm.{NEXT}<|channel|>commentary to=functions.f <|constrain|>json"
            '<|message|>{"x": 1}<|call|>',
            '<think>\nHm.\n</think>\n\n<tool_call>\nfunctions.f\n{"x": 1}',
        ),
        (
            " to=functions.f<|channel|>commentary<|constrain|>json<|message|>{}<|end|>"
            f"<|start|>assistant{FINAL}Done.",
            "<tool_call>\nfunctions.f\n{}\n</tool_call>\n\nDone.",
        ),
        (
            f"<|channel|>commentary<|message|>I look.{NEXT}{FINAL}Yes.",
            "I look.\n\nYes.",
        ),
        ("Yes. No header.", "Yes. No header."),
        ("to be", "to be"),
        (f"{FINAL}a<|channel|>final<|message|>b<|message|>c", "a\n\nbc"),
        (f"{ANALYSIS}a </think> b{NEXT}{FINAL}c", "<think>\na </ think> b\n</think>\n\nc"),
        (f"{ANALYSIS}a </th", "<think>\na </th"),
    ],
)
def test_what_is_written_and_what_is_told(tokenizer: Tokenizer, written: str, text: str) -> None:
    assert tokenizer.decode(ids_of(tokenizer, written)) == text


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.lists(TEXTS, max_size=3), TEXTS)
def test_reasoning_and_answer_are_told_apart_at_every_token(
    tokenizer: Tokenizer, thoughts: list[str], answer: str
) -> None:
    # The texts are encoded apart from the markers: those that they spell stay text.
    ids: list[int] = []
    for place, text in enumerate([*thoughts, answer]):
        head = FINAL if place == len(thoughts) else ANALYSIS
        ids += ids_of(tokenizer, (NEXT if place else "") + head) + tokenizer.encode(text)
    decoder, splitter = tokenizer.decoder(), ReasoningSplitter()
    pieces = []
    for place, token in enumerate(ids):
        pieces += splitter.feed(decoder.push(token))
        begun = split(tokenizer.decode(ids[: place + 1]))[1]
        assert answer.startswith(begun.removeprefix("\n\n") if thoughts else begun)
    found = told([*pieces, *splitter.feed(decoder.flush()), *splitter.end()])
    assert found[0].strip() == "\n\n".join(thoughts).strip()
    assert found[1] == (f"\n\n{answer}" if thoughts else answer)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_ids_are_too_odd(tokenizer: Tokenizer, data: Any) -> None:
    odd = st.sampled_from([*tokenizer._control_tokens, -1, 1 << 40])
    some = st.one_of(odd, st.integers(0, tokenizer.vocab_size + 2))
    ids = data.draw(st.lists(some, max_size=40))
    decoder = tokenizer.decoder()
    text = "".join([decoder.push(token) for token in ids]) + decoder.flush()
    assert text == tokenizer.decode(ids)


def test_a_header_without_an_end_is_text(tokenizer: Tokenizer) -> None:
    endless = "x" * (HEADER_CHARACTERS_MAX + 1)
    assert tokenizer.decode(ids_of(tokenizer, f"<|channel|>{endless}y")) == f"{endless}y"


def test_every_end_stops_and_no_message_does(tokenizer: Tokenizer) -> None:
    names = ("<|return|>", "<|endoftext|>", "<|call|>")
    assert set(tokenizer.eos_ids) == {tokenizer._controls[name] for name in names}
    assert tokenizer.chat_stops == ()
    for written, is_over in (
        (f"{ANALYSIS}Hm.<|end|>", False),
        (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.", False),
        (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.<|end|>", True),
        ("<|channel|>commentary<|message|>I look.<|end|>", False),
        ("<|channel|>commentary to=f<|message|>{}<|end|>", False),
        (f"{FINAL}<|end|>", True),
        ("Plain.<|end|>", True),
        (f"{ANALYSIS}Hm.<|end|><|start|>user<|message|>", True),
    ):
        decoder = tokenizer.decoder()
        for token in ids_of(tokenizer, written):
            decoder.push(token)
        assert decoder.is_over == is_over, written


def test_where_the_template_has_no_channels_their_markers_are_text(tmp_path: Path) -> None:
    make_channels(tmp_path, CHATML)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    written = f"{ANALYSIS}Hm.<|end|>"
    assert tokenizer.decode(ids_of(tokenizer, written)) == written


# The template


@pytest.mark.parametrize(("effort", "goes_on"), [("auto", True), ("high", False)])
@pytest.mark.parametrize(
    ("content", "thinking", "answer"),
    [
        ("<think>\nHm.\n</think>\n\nYes. ", "Hm.", "Yes. "),
        ("Yes.", "", "Yes."),
        (" Yes.", "", " Yes."),
        ("<think>\nHm, so", "Hm, so", ""),
        ("Hm.\n</think>\nYes.", "Hm.", "Yes."),
    ],
)
def test_the_template_gets_reasoning_apart(
    content: str, thinking: str, answer: str, effort: Any, goes_on: bool
) -> None:
    asked: list[Message] = [{"role": "system", "content": "Be brief."}, QUESTION]
    expected = _compile_jinja_template(CHANNELS).render(
        messages=[
            *asked,
            {"role": "assistant", "content": answer, "thinking": thinking},
            *([QUESTION] * goes_on),
        ],
        add_generation_prompt=True,
        **({} if effort == "auto" else {"reasoning_effort": effort}),
    )
    talk = [*asked, {"role": "assistant", "content": content}, *([QUESTION] * goes_on)]
    segments = render_template(CHANNELS, talk, {}, ReasoningOptions(effort=effort))
    assert "".join(segment.text for segment in segments) == expected
    own = "".join(segment.text for segment in segments if segment.message is None)
    assert "Yes" not in own
    assert "Hm" not in own


def test_thinking_is_told_to_templates_that_read_it(tokenizer: Tokenizer) -> None:
    source = "{{ enable_thinking | default('unset') }} {{ reasoning_effort is defined }}"
    for options, expected in (
        (ReasoningOptions(), "unset False"),
        (ReasoningOptions("on"), "True False"),
        (ReasoningOptions("off", "low"), "False True"),
        (ReasoningOptions(), "unset False"),
    ):
        segments = render_template(source, [QUESTION], {}, options)
        assert "".join(segment.text for segment in segments) == expected
    assert tokenizer.reasoning_variables == {"reasoning_effort"}
    assert ReasoningOptions("on", "low").unread(tokenizer.reasoning_variables) == [
        "this model's template knows no enable_thinking: think changes nothing"
    ]
    assert ReasoningOptions("auto", "low").unread(tokenizer.reasoning_variables) == []
    assert tokenizer.encode_chat([QUESTION], None, ReasoningOptions("on", "low")) == (
        tokenizer.encode_chat([QUESTION], None, ReasoningOptions(effort="low"))
    )


@pytest.mark.parametrize("marker", [*CHANNEL_MARKERS, f"{ANALYSIS}a{NEXT}{FINAL}b<|return|>"])
@pytest.mark.parametrize(
    "frame", ["{}", "<think>\n{}\n</think>\n\nYes {}", "<tool_call>\n{}", "<think>{}"]
)
def test_markers_that_somebody_wrote_stay_text(
    tokenizer: Tokenizer, marker: str, frame: str
) -> None:
    text = frame.replace("{}", marker)
    talk: list[Message] = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text},
        {"role": "user", "content": text},
    ]
    plain = [{**message, "content": "x"} for message in talk]
    expected = controls(tokenizer, tokenizer.encode_chat(plain))
    assert controls(tokenizer, tokenizer.encode_chat(talk)) == expected
    assert controls(tokenizer, tokenizer.encode(text)) == []
    # Written by the model with ordinary tokens, they are told as they are.
    head = ids_of(tokenizer, FINAL)
    assert tokenizer.decode([*head, *tokenizer.encode(marker)]) == marker


# What was generated and what the next prompt begins with


def test_the_next_prompt_begins_as_the_context_does(tokenizer: Tokenizer) -> None:
    before = tokenizer.encode_chat([QUESTION])
    end = tokenizer._controls["<|end|>"]
    spelled = [token for letter in "Yes." for token in tokenizer.encode(letter)]
    own = [*ids_of(tokenizer, FINAL), *spelled]
    talk = [QUESTION, {"role": "assistant", "content": tokenizer.decode(own)}, QUESTION]
    for written in (own, [*own, end], [*own, tokenizer.eos_ids[0]]):
        ids = tokenizer.encode_chat(talk, {1: written})
        assert ids[: len(before) + len(own) + 1] == [*before, *own, end]
    # With reasoning, which the template leaves out, as far as the answer's first marker.
    thought = [*ids_of(tokenizer, f"{ANALYSIS}Hm.{NEXT}"), *own]
    talk[1] = {"role": "assistant", "content": tokenizer.decode(thought)}
    ids = tokenizer.encode_chat(talk, {1: thought})
    assert ids == tokenizer.encode_chat(
        [QUESTION, {"role": "assistant", "content": "Yes."}, QUESTION], {1: own}
    )
    assert ids[: len(before) + 1] == [*before, tokenizer._controls["<|channel|>"]]


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_ids_change_a_text(tokenizer: Tokenizer, data: Any) -> None:
    content = data.draw(st.sampled_from(["Yes.", "<think>\nHm.\n</think>\n\nYes.", "<|end|>"]))
    talk: list[Message] = [QUESTION, {"role": "assistant", "content": content}, QUESTION]
    usual = tokenizer.encode_chat(talk)
    some = st.lists(st.integers(0, tokenizer.vocab_size), max_size=6)
    head = ids_of(tokenizer, data.draw(st.sampled_from(["", FINAL, f"{ANALYSIS}Hm.{NEXT}{FINAL}"])))
    own = [*head, *tokenizer.encode(split(content)[1].strip())[: data.draw(st.integers(0, 4))]]
    ids = tokenizer.encode_chat(talk, {1: [*own, *data.draw(some)]})
    piece: Callable[[int], bytes] = tokenizer.vocabulary.piece_bytes
    assert b"".join(map(piece, ids)) == b"".join(map(piece, usual))
    assert controls(tokenizer, ids) == controls(tokenizer, usual)


@pytest.mark.parametrize(
    "written",
    [
        f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes",
        f"{ANALYSIS}Hm. So",
        f"{FINAL}Yes",
        f"{ANALYSIS}Hm.{NEXT}{FINAL}",
    ],
)
def test_an_answer_whose_ids_are_not_known_goes_on(tokenizer: Tokenizer, written: str) -> None:
    ids = ids_of(tokenizer, written)
    assert tokenizer.encode_answer(tokenizer.decode(ids)) == ids


def test_a_file_names_the_ends(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A conversion may have lost generation_config.json: the markers themselves end an answer."""
    make_channels(tmp_path, CHANNELS)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": None}))
    alone = load_tokenizer(tmp_path)
    assert alone is not None
    assert set(alone.eos_ids) == {alone._controls["<|return|>"], alone._controls["<|call|>"]}
