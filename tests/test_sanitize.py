"""The sanitizer: no escape sequence survives, however it is cut, and plain text is untouched."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm.untrusted.terminal import Sanitizer, sanitize, sanitize_line

PAYLOADS = {
    "csi_clear": "\x1b[2J",
    "csi_colour": "\x1b[38;5;196m",
    "csi_private": "\x1b[?1049h",
    "csi_intermediate": "\x1b[!p",
    "csi_c1": "\x9b31m",
    "osc_title": "\x1b]0;title\x07",
    "osc_title_st": "\x1b]0;title\x1b\\",
    "osc_link": "\x1b]8;;https://example.org\x1b\\",
    "osc_clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "osc_c1": "\x9d52;c;ZXZpbA==\x9c",
    "dcs": "\x1bP1$r0m\x1b\\",
    "dcs_c1": "\x90q#0;2;0;0;0\x9c",
    "sos": "\x1bXhidden\x1b\\",
    "sos_c1": "\x98hidden\x9c",
    "pm": "\x1b^hidden\x1b\\",
    "pm_c1": "\x9ehidden\x9c",
    "apc": "\x1b_Gf=24;AAAA\x1b\\",
    "apc_c1": "\x9fGf=24;AAAA\x9c",
    "reset": "\x1bc",
    "charset": "\x1b(0",
    "double_escape": "\x1b\x1b[2J",
    "nested_in_osc": "\x1b]0;a\x1b[2J",
    "string_aborted": "\x1b]0;title\x18",
    "csi_aborted": "\x1b[31\x1a",
    "bell": "\x07",
    "backspace": "\x08\x08",
    "carriage_return": "\r",
    "delete": "\x7f",
    "null": "\x00",
    "next_line": "\x85",
    "bidi_override": "\u202e",
    "bidi_isolate": "\u2066\u2069",
}
UNTERMINATED = (
    "\x1b]0;no end",
    "\x1bPno end",
    "\x1b_no end",
    "\x9dno end",
    "\x1b[31",
    "\x1b",
    "\x9b",
)

hostile_text = st.lists(
    st.one_of(
        st.sampled_from([*PAYLOADS.values(), *UNTERMINATED]),
        st.text(max_size=8),
        st.text(alphabet="\x1b\x9b\x9d\x9c\x07\x18[]P^_X\\;0m\n\t é\u202e", max_size=12),
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_disappears_and_its_surroundings_stay(payload: str) -> None:
    assert sanitize(f"before {payload}after") == "before after"


@pytest.mark.parametrize("payload", UNTERMINATED)
def test_an_unterminated_sequence_ends_with_the_text(payload: str) -> None:
    sanitizer = Sanitizer()
    assert sanitizer.feed("before" + payload) == "before"
    assert sanitizer.flush() == ""
    assert sanitizer.feed("next answer") == "next answer"


def test_a_sequence_is_removed_across_chunks() -> None:
    sanitizer = Sanitizer()
    chunks = ["a\x1b", "]52;c;ZX", "ZpbA==", "\x1b", "\\b"]
    assert [sanitizer.feed(chunk) for chunk in chunks] == ["a", "", "", "", "b"]


def test_newline_and_tab_stay_also_inside_a_sequence() -> None:
    assert sanitize("a\n\tb\x1b[3\n1mc") == "a\n\tb\nc"


def test_a_character_outside_ascii_ends_a_broken_sequence() -> None:
    assert sanitize("\x1bé \x1b[3é") == "é é"


def test_a_lone_surrogate_becomes_printable() -> None:
    assert sanitize("file-\udcff") == "file-\ufffd"


def test_a_line_has_no_newlines() -> None:
    assert sanitize_line("a\n b\x1b[2J\tc ") == "a b c"


@given(hostile_text)
def test_only_harmless_characters_come_out(text: str) -> None:
    for character in sanitize(text):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
        assert not "\u202a" <= character <= "\u202e"
        assert not "\u2066" <= character <= "\u2069"


@given(hostile_text, st.lists(st.integers(0, 200), max_size=20))
def test_cutting_the_text_changes_nothing(text: str, cuts: list[int]) -> None:
    sanitizer = Sanitizer()
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    assert "".join(map(sanitizer.feed, pieces)) + sanitizer.flush() == sanitize(text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs", "Cf"])))
def test_plain_text_is_untouched(text: str) -> None:
    assert sanitize(text) == text


@given(hostile_text)
def test_clean_text_stays_clean(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)
