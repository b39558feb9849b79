"""Lines of the screen with a small part of the memory that Textual gives to each of them.

A `Strip` is a line of a widget. It has seven caches of four answers, each of two objects, and a
screen has some thousand lines. Twelve answers, two pages and some typing made 24,000 lines, and in
all of that five of the caches never had what they were asked for: a line is cut, styled or
lengthened once. The other two are asked for what they were asked for last.
"""

from __future__ import annotations

from inspect import getattr_static
from typing import Any, Final

from textual.strip import Strip

RARELY_ASKED = (
    "_crop_cache",
    "_style_cache",
    "_line_length_cache",
    "_crop_extend_cache",
    "_offsets_cache",
)
OFTEN_ASKED = ("_divide_cache", "_filter_cache")
"""They answer 73 questions of 100 by the last answer; by the last four, 74."""


class _Forgetful:
    """In place of a cache; one for all lines."""

    __slots__ = ()

    def get(self, key: object, default: Any = None) -> Any:  # noqa: ARG002
        """What is not there."""
        return default

    def __setitem__(self, key: object, value: object) -> None:
        """Forgets it."""


class _LastAnswer:
    """In place of a cache; remembers one answer."""

    __slots__ = ("_key", "_value")

    def __init__(self) -> None:
        self._key: object = None
        self._value: Any = None

    def get(self, key: object, default: Any = None) -> Any:
        """The answer, if it was the last one."""
        return self._value if self._key == key else default

    def __setitem__(self, key: object, value: object) -> None:
        self._key, self._value = key, value


_FORGETFUL: Final = _Forgetful()


class _SharedCache:
    """A cache's place in all lines: it is the forgetful one, and Textual's own goes."""

    def __get__(self, strip: object, of: type | None = None) -> _Forgetful:
        return _FORGETFUL

    def __set__(self, strip: object, value: object) -> None:
        pass


class _LateCache:
    """A cache's place in a line: an answer is kept from the first question on, and not before.

    Most lines are pieces of others, and are never asked.
    """

    def __init__(self, place: Any) -> None:
        """`place` is where Textual keeps the cache of a line."""
        self.place = place

    def __get__(self, strip: object, of: type | None = None) -> _LastAnswer:
        try:
            found: _LastAnswer = self.place.__get__(strip, of)
        except AttributeError:
            found = _LastAnswer()
            self.place.__set__(strip, found)
        return found

    def __set__(self, strip: object, value: object) -> None:
        pass


def make_strips_lean() -> None:
    """From now on; nothing is changed where Textual's lines have other caches than these."""
    if not {*RARELY_ASKED, *OFTEN_ASKED} <= set(Strip.__slots__):
        return
    if any(isinstance(getattr_static(Strip, name), _LateCache) for name in OFTEN_ASKED):
        return
    for name in RARELY_ASKED:
        setattr(Strip, name, _SharedCache())
    for name in OFTEN_ASKED:
        setattr(Strip, name, _LateCache(getattr_static(Strip, name)))
