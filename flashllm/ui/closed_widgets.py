"""What Textual keeps of widgets that are gone, to be let go of."""

from __future__ import annotations

from textual._styles_cache import StylesCache


def forget_closed_widgets() -> None:
    """Empties a cache of backgrounds whose keys hold the lines of the last thousand widgets.

    The cache is on a method, so that `self` is in each key, and with it all that the widget drew:
    some 10 MiB after an hour. What it saves is the sum of two colours, made anew at the next frame.
    """
    clear = getattr(StylesCache.get_inner_outer, "cache_clear", None)
    if clear is not None:  # not in every version of Textual
        clear()
