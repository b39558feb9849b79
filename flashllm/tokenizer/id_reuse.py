"""Reuses the ids that an answer was generated with, instead of those that its text encodes to.

A model may spell a text with other pieces than the tokenizer would. A prompt that repeats the
answer's own ids has a common prefix with the context, which need not be read again. The ids that
are put in spell the same bytes as those that they replace, or as the text, and no control token.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """An answer's place in the encoded parts, and its ids."""

    part: int
    """Number of the text among the parts."""
    before: str
    """Text of that part before the answer."""
    text: str
    """The answer, without white space around it."""
    ids: Sequence[int]
    """The ids that it was generated with."""


@dataclass(slots=True)
class TextSpan:
    """Text between two control tokens: its ids, and the bytes at which they begin."""

    ids: list[int]
    raw: bytes
    at: dict[int, int]
    """Index of the id that begins at a byte."""
    added_space: int
    """Bytes of white space at its beginning that the encoder added."""


class TokenReuse:
    """Puts previous ids into encoded prompts, for one vocabulary."""

    def __init__(self, piece_bytes: Callable[[int], bytes], controls: Container[int]) -> None:
        self._piece_bytes = piece_bytes
        self._controls = controls

    def put(
        self, ids: list[int], parts: Sequence[str | int], places: Iterable[AnswerSpan]
    ) -> list[int]:
        """`ids` are the encoded `parts` (text and control tokens); `places` are in order."""
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
            return self._whole(text, places) or ids
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

    def _whole(self, text: str, places: Sequence[AnswerSpan]) -> list[int]:
        """The ids of an answer that is all of a text; none where they do not spell it.

        For tokenizers that change what they encode: one that drops capitals cannot encode to the
        ids of an answer that has some, and yet these spell the text.
        """
        if len(places) != 1 or places[0].text.strip() != text.strip():
            return []
        ids = places[0].ids
        raw = b"".join([self._piece_bytes(token) for token in ids])
        is_spelled = raw.strip() == _utf8(text).strip()
        return list(ids) if is_spelled and not any(t in self._controls for t in ids) else []

    def _text_span(self, ids: list[int], text: str) -> TextSpan | None:
        """The span of `ids`; None unless they spell the text, apart from outer white space."""
        pieces = [self._piece_bytes(token) for token in ids]
        raw, wanted = b"".join(pieces), _utf8(text)
        if raw.strip() != wanted.strip():
            return None
        at: dict[int, int] = {}
        for number, byte in enumerate(accumulate(map(len, pieces), initial=0)):
            at.setdefault(byte, number)
        return TextSpan(ids, raw, at, _lead(raw) - _lead(wanted))

    def _start(self, span: TextSpan, place: AnswerSpan) -> int:
        """The byte of the span at which the answer's ids begin; -1 if there is none."""
        own = b"".join([self._piece_bytes(token) for token in place.ids])
        text_at = len(_utf8(place.before)) + span.added_space
        is_there = span.raw.startswith(_utf8(place.text), max(text_at, 0))
        return text_at - _lead(own) if text_at >= 0 and is_there else -1

    def _matching(self, span: TextSpan, start: int, ids: Sequence[int]) -> tuple[int, int]:
        """How many ids spell the same bytes, up to a byte where one of the replaced ids ends."""
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
