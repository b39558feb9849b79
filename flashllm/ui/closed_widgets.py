"""What Textual and Rich keep of widgets, sizes and texts that are gone, to be let go of."""

from __future__ import annotations

import gc
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from typing import Any

from rich.cells import cached_cell_len
from rich.segment import Segment
from rich.style import Style
from textual import filter as filters
from textual._segment_tools import make_blank
from textual._styles_cache import StylesCache
from textual.app import App
from textual.css.scalar import Scalar
from textual.geometry import Offset, Region, Size, Spacing
from textual.message_pump import MessagePump
from textual.strip import Strip

from flashllm.system.malloc import give_back_free_memory


def forget_closed_widgets() -> None:
    """Empties caches of methods: sixty changes of conversation left 11 MiB there.

    The one of `StylesCache` has `self` in its keys, and so holds the lines of the last thousand
    widgets. Those of places hold tens of thousands, which come back only where sizes do; those of
    texts the last 4,096 that were measured, up to 511 characters each, and 16,384 that were cut.
    A style says at which place of a widget its text is, so 16,384 of them were written as codes for
    the terminal before one was forgotten, and 1,024 with the colours that this terminal has. What
    all of these save is little arithmetic; the next frame does it anew.
    """
    for kind in (StylesCache, Region, Size, Offset, Spacing, Scalar, Segment, Style, Strip,
                 filters, filters.ANSIToTruecolor):  # fmt: skip
        for method in vars(kind).values():
            function = getattr(method, "__func__", method)  # a class method has none by itself
            clear = getattr(function, "cache_clear", None)
            if clear is not None:
                clear()
    cached_cell_len.cache_clear()
    make_blank.cache_clear()


def forget_closed_watchers(app: App[Any]) -> None:
    """Lets go of closed widgets that wanted to know of another theme.

    Textual does that when there is one. Until then each field of several lines that ever was on a
    page stays, with the history of what was typed: thirty after half an hour of use.
    """
    watchers: dict[str, list[tuple[MessagePump, object]]] = getattr(app, "__watchers", {})
    for of_name in watchers.values():
        of_name[:] = [(node, call) for node, call in of_name if not node._closing]  # noqa: SLF001


def collect_closed_widgets(app: App[Any]) -> None:
    """Takes what closed widgets took, before others are made in a place of their own.

    A widget and its parent know each other, so that only the collector frees them. Each has
    dictionaries that the C library's heap holds, whose free pages go back to the system.
    """
    forget_closed_widgets()
    forget_closed_watchers(app)
    gc.collect()
    give_back_free_memory()


UNCOLLECTED_BLOCKS = 8_000
"""Of Python's allocator, 0.7 MiB or so, that may be there more than after the last collection. A
page leaves 10 to 40 thousand when it is closed, an answer 5 to 50."""
UNCOLLECTED_BLOCKS_BELOW_PAGE = 2_000
"""As many may be there when a page is opened, of which each makes 10 to 40 thousand."""
FULL = 2
"""The generation of the collector that is all of them."""


class GarbageWatch:
    """Calls `collect`, in its loop, when closed widgets may take more than `UNCOLLECTED_BLOCKS`.

    The heap never becomes smaller than what was there at once, so the most that was there must not
    depend on how many pages, answers and lines came and went while nobody was quiet. The collector
    itself says when to look: it is at work whenever many objects are made, and only then.
    """

    def __init__(self, collect: Callable[[], object]) -> None:
        self._collect = collect
        self._blocks = 0
        """Of Python's allocator, after the last full collection."""
        self._loop: AbstractEventLoop | None = None
        self._is_told = False

    @property
    def is_due(self) -> bool:
        """Whether there is much more than after the last collection."""
        return self._exceeds(UNCOLLECTED_BLOCKS)

    def make_room_for_page(self) -> None:
        """Collects what is there at once, before a page comes on top of it."""
        if self._exceeds(UNCOLLECTED_BLOCKS_BELOW_PAGE):
            self._collect()

    def start(self, loop: AbstractEventLoop) -> None:
        """From now on `collect` is called in `loop`."""
        self._loop, self._blocks = loop, sys.getallocatedblocks()
        gc.callbacks.append(self._look)

    def stop(self) -> None:
        """It is not called any more."""
        if self._loop is not None:
            self._loop = None
            gc.callbacks.remove(self._look)

    def _exceeds(self, blocks: int) -> bool:
        return sys.getallocatedblocks() > self._blocks + blocks

    def _look(self, phase: str, found: Mapping[str, Any]) -> None:
        # In whichever thread makes objects, and in the midst of anything: only a note is left.
        if phase == "stop" and found["generation"] == FULL:
            self._blocks = sys.getallocatedblocks()
        elif phase == "stop" and not self._is_told:
            loop = self._loop
            if loop is not None and self.is_due and not loop.is_closed():
                self._is_told = True
                loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._is_told = False
        if self._loop is not None and self.is_due:
            self._collect()
