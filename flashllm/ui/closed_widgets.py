"""What Textual keeps of widgets and sizes that are gone, to be let go of."""

from __future__ import annotations

from textual._styles_cache import StylesCache
from textual.css.scalar import Scalar
from textual.geometry import Offset, Region, Size, Spacing


def forget_closed_widgets() -> None:
    """Empties caches of methods: sixty changes of conversation left 11 MiB there.

    The one of `StylesCache` has `self` in its keys, and so holds the lines of the last thousand
    widgets. Those of places hold tens of thousands, which come back only where sizes do. What they
    save is little arithmetic; the next frame does it anew.
    """
    for kind in (StylesCache, Region, Size, Offset, Spacing, Scalar):
        for method in vars(kind).values():
            clear = getattr(method, "cache_clear", None)
            if clear is not None:
                clear()
