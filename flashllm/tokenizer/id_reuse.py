"""The ids that an answer was generated with, in place of those that its text encodes to.

A model may spell a text in other pieces than the tokenizer would. A prompt that repeats the
answer's own ids begins as the context does that it was written in, which need not be read again.
What is put in place has the same bytes as what it replaces, and no control token.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Where an answer lies in what is encoded."""

    part: int
    """Number of the stretch of text among the parts."""
    before: str
    """Text of the stretch in front of the answer."""
    text: str
    """The answer, without white space around it."""
    ids: Sequence[int]
    """Those that it was generated with."""


@dataclass(slots=True)
class TextSpan:
    """Text between two control tokens: its ids, and how its bytes lie on them."""

    ids: list[int]
    raw: bytes
    at: dict[int, int]
    """The id that begins at a byte."""
    added_space: int
    """How many more bytes of white space it begins with than the text that was encoded."""


class TokenReuse:
    """Puts them into place, for one vocabulary."""

    def __init__(self, piece_bytes: Callable[[int], bytes], controls: Container[int]) -> None:
        self._piece_bytes = piece_bytes
        self._controls = controls

    def put(
        self, ids: list[int], parts: Sequence[str | int], places: Iterable[AnswerSpan]
    ) -> list[int]:
        """`ids` are what `parts`, text and control tokens, were encoded to; places in order."""
        waiting = list(places)
        out: list[int] = []
        position = 0
        for number, part in enumerate(parts):
            if isinstance(part, int):
                if ids[position : position + 1] != [part]:
                    return ids
                out.append(part)
                position += 1
                continue
            following = [p for p in parts[number + 1 : number + 2] if isinstance(p, int)]
            end = _find(ids, following[0], position) if following else len(ids)
            if end is None:  # the vocabulary's rules took a marker away
                return ids
            here = [place for place in waiting if place.part == number]
            out += self._replaced(ids[position:end], part, here)
            position = end
        return out if position == len(ids) else list(ids)

    def _replaced(self, ids: list[int], text: str, places: Sequence[AnswerSpan]) -> list[int]:
        span = self._text_span(ids, text) if places else None
        if span is None:
            return ids
        out: list[int] = []
        done = 0
        for place in places:
            start = self._start(span, place)
            first = span.at.get(start)
            if first is None or first < done:
                continue
            count, end = self._matching(span, start, place.ids)
            out += [*ids[done:first], *place.ids[:count]]
            done = span.at[end]
        return [*out, *ids[done:]]

    def _text_span(self, ids: list[int], text: str) -> TextSpan | None:
        """None where the ids are not those of the text, but for white space at its ends."""
        pieces = [self._piece_bytes(token) for token in ids]
        raw, wanted = b"".join(pieces), _utf8(text)
        if raw.strip() != wanted.strip():
            return None
        at: dict[int, int] = {}
        for number, byte in enumerate(accumulate(map(len, pieces), initial=0)):
            at.setdefault(byte, number)
        return TextSpan(ids, raw, at, _lead(raw) - _lead(wanted))

    def _start(self, span: TextSpan, place: AnswerSpan) -> int:
        """The byte of the stretch at which the answer's ids begin; -1 if there is no such place."""
        own = b"".join([self._piece_bytes(token) for token in place.ids])
        text_at = len(_utf8(place.before)) + span.added_space
        is_there = span.raw.startswith(_utf8(place.text), max(text_at, 0))
        return text_at - _lead(own) if text_at >= 0 and is_there else -1

    def _matching(self, span: TextSpan, start: int, ids: Sequence[int]) -> tuple[int, int]:
        """How many ids spell what is there, as far as they end where one of the others ends."""
        found, byte = (0, start), start
        for count, token in enumerate(ids, 1):
            piece = self._piece_bytes(token)
            if not piece or token in self._controls or not span.raw.startswith(piece, byte):
                break
            byte += len(piece)
            if byte in span.at:
                found = (count, byte)
        return found


def _find(ids: Sequence[int], token: int, start: int) -> int | None:
    try:
        return ids.index(token, start)
    except ValueError:
        return None


def _lead(raw: bytes) -> int:
    """Bytes of white space at the beginning."""
    return len(raw) - len(raw.lstrip())


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
