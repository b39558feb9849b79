"""What Textual and Rich keep of widgets, sizes and texts that are gone, to be let go of."""

from __future__ import annotations

import gc

from rich.cells import cached_cell_len
from rich.segment import Segment
from rich.style import Style
from textual._segment_tools import make_blank
from textual._styles_cache import StylesCache
from textual.css.scalar import Scalar
from textual.geometry import Offset, Region, Size, Spacing
from textual.strip import Strip


def forget_closed_widgets() -> None:
    """Empties caches of methods: sixty changes of conversation left 11 MiB there.

    The one of `StylesCache` has `self` in its keys, and so holds the lines of the last thousand
    widgets. Those of places hold tens of thousands, which come back only where sizes do; those of
    texts the last 4,096 that were measured, up to 511 characters each, and 16,384 that were cut.
    A style says at which place of a widget its text is, so 16,384 of them were written as codes for
    the terminal before one was forgotten. What all of these save is little arithmetic; the next
    frame does it anew.
    """
    for kind in (StylesCache, Region, Size, Offset, Spacing, Scalar, Segment, Style, Strip):
        for method in vars(kind).values():
            function = getattr(method, "__func__", method)  # a class method has none by itself
            clear = getattr(function, "cache_clear", None)
            if clear is not None:
                clear()
    cached_cell_len.cache_clear()
    make_blank.cache_clear()


def collect_closed_widgets() -> None:
    """Takes what closed widgets took, before others are made in a place of their own.

    A widget and its parent know each other, so that only the collector frees them.
    """
    forget_closed_widgets()
    gc.collect()
