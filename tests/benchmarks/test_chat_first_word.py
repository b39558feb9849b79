"""When the first word of an answer was on the screen: `benchmarks.chat.first_word`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

from benchmarks.chat.first_word import first_word_seconds
from benchmarks.chat.terminal import ChatTerminal
from flashllm.errors import BenchmarkInvalid, ReadFailed

SCREEN = r"""
import sys, time
pieces = [
    "\x1b[22;2H\x1b[38;2;1;2;3m \x1b[0msea?\x1b[24;4H\x1b[0mland: dry\x1b[0m",  # the answer before
    "\x1b[29;3H s\x1b[0m\x1b[30;2Hsea\x1b[0m\x1b[24;4H   \x1b[0m",
    "\x1b[26;4H\x1b[1m\x1b[38;2;9;9;9ms\x1b[0m   \x1b[26;99H",  # the word begins
    "\x1b[26;4Hsea: wet\x1b[0m\x1b[1;1Hend",
]
for piece in pieces:
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.1)
"""


@pytest.fixture
def shown() -> Iterator[ChatTerminal]:
    """A terminal on which an answer came in two parts."""
    with ChatTerminal([sys.executable, "-c", SCREEN], os.environ) as terminal:
        terminal.wait_for("end")
        yield terminal


def test_it_is_the_first_part_where_a_paragraph_begins(shown: ChatTerminal) -> None:
    came = {piece.text: piece.when for piece in shown.texts(0) if piece.column == 4}
    assert list(came) == ["land: dry", "   ", "s", "sea: wet"]
    assert came["land: dry"] < came["s"] < came["sea: wet"] <= time.monotonic()
    begin = came["land: dry"]
    seconds = first_word_seconds(shown, 0, begin, "sea: wet", "land: dry")
    assert seconds == came["s"] - begin
    whole = first_word_seconds(shown, 0, begin, "  **land**: dry", "sea: wet")
    assert whole == 0, "a word that was there at once, whatever stands around it"


def test_what_cannot_be_told_is_said(shown: ChatTerminal) -> None:
    with pytest.raises(BenchmarkInvalid, match="two answers begin with 'sea'"):
        first_word_seconds(shown, 0, 0.0, "sea: wet", "sea: salt")
    with pytest.raises(BenchmarkInvalid, match="no word"):
        first_word_seconds(shown, 0, 0.0, "...")
    with pytest.raises(ReadFailed, match="never showed 'sky'"):
        first_word_seconds(shown, 0, 0.0, "sky: blue")
    with pytest.raises(ReadFailed, match="never showed 'sea'"):
        first_word_seconds(shown, shown.position, 0.0, "sea: wet")
