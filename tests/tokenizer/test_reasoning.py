"""Reasoning and answer: told apart wherever the text is cut."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm.tokenizer.reasoning import (
    Kind,
    Piece,
    ReasoningCounter,
    ReasoningSplitter,
    split,
    told,
)

MARKED = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "\n", " ", "a", "<", "/think>"]), max_size=10
).map("".join)


def arriving(pieces: list[str]) -> list[Piece]:
    splitter = ReasoningSplitter()
    found = [piece for text in pieces for piece in splitter.feed(text)]
    return [*found, *splitter.end()]


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("Plain.", "", "Plain."),
        ("<think>hm</think>\n\nYes.", "hm", "\n\nYes."),
        ("\n <think>\na < b, </thin\n</think>No.", "\na < b, </thin\n", "No."),
        ("<think>never ends", "never ends", ""),
        ("hm, so\n</think>\n\nYes.", "hm, so", "\n\nYes."),
        ("</think>\n\nYes.", "", "\n\nYes."),
        ("Write `</think>` last.", "", "Write `</think>` last."),
        ("So <think> begins it.\n", "", "So <think> begins it.\n"),
        ("<think>a</think>b\n</think>\nc", "a", "b\n</think>\nc"),
        ("<thi", "", "<thi"),
        ("<think", "", "<think"),
        ("<thinking>", "", "<thinking>"),
        ("", "", ""),
    ],
)
def test_what_is_reasoning_and_what_is_answer(text: str, thought: str, answer: str) -> None:
    assert split(text) == (thought, answer)
    assert told(arriving(list(text))) == (thought, answer)


@given(MARKED, st.lists(st.integers(0, 40), max_size=6))
def test_wherever_the_text_is_cut(text: str, places: list[int]) -> None:
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    pieces = [text[begin:end] for begin, end in pairwise(cuts)]
    assert told(arriving(pieces)) == split(text)


@given(MARKED)
def test_nothing_is_lost_but_marks(text: str) -> None:
    thought, answer = split(text)
    kept = (thought + answer).replace("\n", "").replace(" ", "")
    plain = text.replace("\n", "").replace(" ", "")
    bare = plain.removeprefix("<think>")
    ends = [match.span() for match in re.finditer("</think>", plain)]
    without_end = {plain[:begin] + plain[end:] for begin, end in ends}
    assert kept in {
        plain,
        bare,
        *without_end,
        *(one.removeprefix("<think>") for one in without_end),
    }


def test_reasoning_comes_piece_by_piece() -> None:
    splitter = ReasoningSplitter()
    assert splitter.feed("<think>") == []
    assert splitter.feed("so ") == [Piece(Kind.REASONING, "so ")]
    assert splitter.feed("it </th") == [Piece(Kind.REASONING, "it ")]
    assert splitter.feed("ink>\nYes") == [Piece(Kind.ANSWER, "\nYes")]


@pytest.mark.parametrize(
    ("begun", "texts", "reasoning_tokens"),
    [
        ("", ["No", "ne."], 0),
        ("", ["<think>", "a", " b", "</think>", "Yes", "."], 4),
        ("", ["", "", "<think>\n", "a", "", "\n</think>\n\n", "", "Yes"], 6),
        ("", ["<think>a</think>Yes", "."], 1),
        ("", ["so", " it is", "\n</think>", "\n", "Yes"], 4),  # the prompt ended in the first mark
        ("", ["<think>", "never", " ends"], 3),
        ("<think>so", [" it", " is", "</think>", "Yes"], 3),
        ("<think>so</think>Y", ["es", "<think>"], 0),
    ],
)
def test_tokens_of_reasoning_are_counted(
    begun: str, texts: list[str], reasoning_tokens: int
) -> None:
    counter = ReasoningCounter(begun)
    for text in texts:
        counter.add(text)
    assert (counter.tokens, counter.reasoning_tokens) == (len(texts), reasoning_tokens)
