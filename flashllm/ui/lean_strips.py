"""Lines of the screen with a small part of the memory that Textual gives to each of them.

A `Strip` is a line of a widget. It has seven caches of four answers, each of two objects, and a
screen has some thousand lines. Twelve answers, two pages and some typing made 24,000 lines, and in
all of that five of the caches never had what they were asked for: a line is cut, styled or
lengthened once. The other two are asked for what they were asked for last.
"""

from __future__ import annotations

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
_make_strip = Strip.__init__


def _make_lean(self: Strip, *arguments: Any, **named: Any) -> None:
    _make_strip(self, *arguments, **named)
    for name in RARELY_ASKED:
        setattr(self, name, _FORGETFUL)
    for name in OFTEN_ASKED:
        setattr(self, name, _LastAnswer())


def make_strips_lean() -> None:
    """From now on; nothing is changed where Textual's lines have other caches than these."""
    if {*RARELY_ASKED, *OFTEN_ASKED} <= set(Strip.__slots__):
        Strip.__init__ = _make_lean  # type: ignore[method-assign]
