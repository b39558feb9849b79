"""Makes text from a model, a checkpoint or a file harmless for a terminal.

Goal: the result has no control character but newline and tab, no part of an escape sequence, and
nothing that reverses the direction of reading. Not a goal: judging the content. Terminals act on
bytes that widgets and `print` pass through, so every text for a screen passes through here.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_ESC = "\x1b"
_KEPT_CONTROLS = "\n\t"
# CAN and SUB make a terminal abort the sequence that it is reading.
_ABORTS = "\x18\x1a"
# Introducers of strings after ESC (DCS, SOS, OSC, PM, APC) and as single 8-bit characters.
_STRING_AFTER_ESC = "PX]^_"
_STRING_C1 = "\x90\x98\x9d\x9e\x9f"
_CSI_C1 = "\x9b"
_BEL = "\x07"

_BIDI = "\u202a-\u202e\u2066-\u2069"
_SUSPECT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}\ud800-\udfff]")
_BIDI_CHARACTER = re.compile(f"[{_BIDI}]")


class _State(Enum):
    TEXT = auto()
    ESCAPE = auto()
    CSI = auto()
    STRING = auto()


class Sanitizer:
    """Removes escape sequences from text that arrives in chunks cut anywhere.

    The state is that of a terminal's own parser, so a sequence that began in one chunk is removed
    to its end in a later one, and an unterminated string swallows what a terminal would swallow.
    """

    def __init__(self) -> None:
        self._state = _State.TEXT

    def feed(self, chunk: str) -> str:
        """The harmless part of the next chunk."""
        if self._state is _State.TEXT and not _SUSPECT.search(chunk):
            return chunk
        return "".join([self._step(character) for character in chunk])

    def flush(self) -> str:
        """Ends the text; an unfinished sequence is dropped."""
        self._state = _State.TEXT
        return ""

    def _step(self, character: str) -> str:
        if character < " " or "\x7f" <= character <= "\x9f":
            return self._control(character)
        if self._state is _State.TEXT:
            return _visible(character)
        if self._state is _State.STRING:
            return ""
        if self._state is _State.ESCAPE:
            return self._after_escape(character)
        return self._in_csi(character)

    def _control(self, character: str) -> str:
        if character == _ESC:
            self._state = _State.ESCAPE
        elif character in _STRING_C1:
            self._state = _State.STRING
        elif character == _CSI_C1:
            self._state = _State.CSI
        elif character >= "\x80" or character in _ABORTS:
            self._state = _State.TEXT
        elif self._state is _State.STRING:
            if character == _BEL:
                self._state = _State.TEXT
        elif character in _KEPT_CONTROLS:
            return character  # a terminal obeys these even inside a sequence, and reads on
        return ""

    def _after_escape(self, character: str) -> str:
        if character == "[":
            self._state = _State.CSI
        elif character in _STRING_AFTER_ESC:
            self._state = _State.STRING
        elif "0" <= character <= "~":
            self._state = _State.TEXT
        elif character > "~":
            self._state = _State.TEXT
            return _visible(character)
        return ""  # " " to "/" stand between ESC and the character that ends the sequence

    def _in_csi(self, character: str) -> str:
        if character >= "@":
            self._state = _State.TEXT
            if character > "~":
                return _visible(character)
        return ""


def _visible(character: str) -> str:
    if _BIDI_CHARACTER.match(character):
        return ""
    return "\ufffd" if "\ud800" <= character <= "\udfff" else character


def sanitize(text: str) -> str:
    """The whole of `text` without escape sequences, control characters and bidi overrides."""
    return Sanitizer().feed(text)


def sanitize_line(text: str) -> str:
    """Like `sanitize`, but on one line: for names, titles and status lines."""
    return " ".join(sanitize(text).split())
