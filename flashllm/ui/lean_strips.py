"""Lines of the screen without most of the memories that Textual gives to each of them.

A `Strip` is a line of a widget. It has seven small caches, each of two objects, and a screen has
some thousand lines. Twelve answers, two pages and some typing made 24,000 lines, and in all of that
five of the caches never had what they were asked for: a line is cut, styled or lengthened once.
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
"""The others, by which lines are divided and filtered, answer three of four questions."""


class _Forgetful:
    """In place of a cache; one for all lines."""

    __slots__ = ()

    def get(self, key: object, default: Any = None) -> Any:  # noqa: ARG002
        """What is not there."""
        return default

    def __setitem__(self, key: object, value: object) -> None:
        """Forgets it."""


_FORGETFUL: Final = _Forgetful()
_make_strip = Strip.__init__


def _make_lean(self: Strip, *arguments: Any, **named: Any) -> None:
    _make_strip(self, *arguments, **named)
    for name in RARELY_ASKED:
        setattr(self, name, _FORGETFUL)


def make_strips_lean() -> None:
    """From now on; nothing is changed where Textual's lines have other caches than these."""
    if set(RARELY_ASKED) <= set(Strip.__slots__):
        Strip.__init__ = _make_lean  # type: ignore[method-assign]
