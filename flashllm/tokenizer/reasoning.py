"""What a model thought before its answer, told apart from the answer: between two marks.

Models that reason write `<think>`, what they think, `</think>`, and then the answer. Of some the
prompt ends in the first mark, so that only the second is seen. The text of a turn keeps the marks:
chat templates look for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

BEGIN, END = "<think>", "</think>"
_LATE_END = f"\n{END}\n"
"""The second mark without the first: on a line of its own, else it may be part of an answer."""


class Kind(Enum):
    """What a piece of a turn's text is."""

    REASONING = auto()
    ANSWER = auto()
    ALL_WAS_REASONING = auto()
    """No text: what was taken for the answer until here was reasoning."""


class Piece(NamedTuple):
    """A piece of a turn's text, without marks."""

    kind: Kind
    text: str


class ReasoningSplitter:
    """Tells reasoning from answer in text that arrives in pieces, cut anywhere."""

    def __init__(self) -> None:
        self._is_begun = False
        """Whether it is decided if the turn begins with reasoning."""
        self._is_inside = False
        self._is_over = False
        """Whether there was reasoning; another mark is part of the answer."""
        self._held = ""
        """Text that may be the beginning of a mark."""
        self._is_start = True
        """Whether nothing of the answer was told yet."""

    def feed(self, text: str) -> list[Piece]:
        """What the text adds, as far as it is known what it is."""
        text, self._held = self._held + text, ""
        if not self._is_begun:
            start = text.lstrip()
            if BEGIN.startswith(start) and len(start) < len(BEGIN):
                self._held = text  # white space, or a part of the mark
                return []
            self._is_begun = True
            if start.startswith(BEGIN):
                self._is_inside, text = True, start[len(BEGIN) :]
        if self._is_inside:
            return self._reasoning(text)
        return self._answer(text)

    @property
    def is_inside(self) -> bool:
        """Whether the text ends within reasoning."""
        return self._is_inside

    def end(self) -> list[Piece]:
        """What was held back; more may follow all the same, where an answer is continued."""
        text, self._held = self._held, ""
        self._is_begun = self._is_begun or bool(text.strip())
        return _pieces(Kind.REASONING if self._is_inside else Kind.ANSWER, text)

    def _reasoning(self, text: str) -> list[Piece]:
        thought, mark, rest = text.partition(END)
        if not mark:
            kept = partial_mark(text, END)
            self._held = text[len(text) - kept :]
            return _pieces(Kind.REASONING, text[: len(text) - kept])
        self._is_inside, self._is_over = False, True
        return _pieces(Kind.REASONING, thought) + _pieces(Kind.ANSWER, rest)

    def _answer(self, text: str) -> list[Piece]:
        if self._is_over:
            return _pieces(Kind.ANSWER, text)
        # A line break before the text's own beginning stands for the one that is not there.
        seen = f"\n{text}" if self._is_start else text
        before, mark, rest = seen.partition(_LATE_END)
        if mark:
            self._is_over = True
            thought = before.removeprefix("\n") if self._is_start else before
            turned = Piece(Kind.ALL_WAS_REASONING, "")
            return [*_pieces(Kind.ANSWER, thought), turned, *_pieces(Kind.ANSWER, f"\n{rest}")]
        kept = min(partial_mark(seen, _LATE_END), len(text))
        before, self._held = text[: len(text) - kept], text[len(text) - kept :]
        self._is_start = self._is_start and not before
        return _pieces(Kind.ANSWER, before)


class ReasoningCounter:
    """Counts the tokens of an answer, and apart from them those of its reasoning, marks included.

    Reasoning comes first, so all tokens up to its end are of it, also those that add no text.
    """

    def __init__(self, begun: str = "") -> None:
        """`begun` is what there was of the answer before, which is not counted."""
        self.tokens = 0
        self.reasoning_tokens = 0
        self._splitter = ReasoningSplitter()
        self._splitter.feed(begun)

    def add(self, text: str) -> None:
        """Counts one token, which added this text."""
        was_inside = self._splitter.is_inside
        pieces = self._splitter.feed(text)
        self.tokens += 1
        tells = any(piece.kind is not Kind.ANSWER for piece in pieces)
        if was_inside or self._splitter.is_inside or tells:
            self.reasoning_tokens = self.tokens


def split(text: str) -> tuple[str, str]:
    """The reasoning and the answer of a whole turn."""
    splitter = ReasoningSplitter()
    return told([*splitter.feed(text), *splitter.end()])


def told(pieces: Iterable[Piece]) -> tuple[str, str]:
    """What pieces come to: the reasoning, and the answer."""
    thought, answer = "", ""
    for kind, part in pieces:
        if kind is Kind.REASONING:
            thought += part
        elif kind is Kind.ANSWER:
            answer += part
        else:
            thought, answer = answer, ""
    return thought, answer


def _pieces(kind: Kind, text: str) -> list[Piece]:
    return [Piece(kind, text)] if text else []


def partial_mark(text: str, mark: str) -> int:
    """How many characters at the end of a text are the beginning of a mark, but not all of it."""
    most = min(len(text), len(mark) - 1)
    return next((n for n in range(most, 0, -1) if mark.startswith(text[-n:])), 0)
