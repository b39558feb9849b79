"""The line of keys at the bottom: one widget, drawn anew only where it would say something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

Shown = tuple[Binding, str, bool, str]
"""A binding with its key in words, whether it is possible now, and its tooltip."""


class KeyFooter(Widget):
    """The keys that work now, as many as fit; `first` names bindings from the most useful on.

    `words_of` says what an action would do now, or nothing where its binding's words hold. A click
    presses the key. It looks as Textual's footer does, which has a widget for each key and makes
    all of them anew whenever the engine begins to do something else: half of what the application
    computed while an answer began, and up to a fifth of what a page takes.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS: ClassVar[str] = """
    KeyFooter {
        dock: bottom;
        width: 1fr;
        height: 1;
        color: $footer-foreground;
        background: $footer-background;
        text-wrap: nowrap;
    }
    KeyFooter:hover {
        pointer: pointer;
    }
    """

    def __init__(
        self, first: Sequence[str] = (), words_of: Callable[[str], str | None] = lambda _: None
    ) -> None:
        super().__init__()
        self._words_of = words_of
        self._first = {name: place for place, name in enumerate(first)}
        self.shown: list[Shown] = []
        """The keys that are there, from left to right."""
        self._under_mouse: Shown | None = None

    def on_mount(self) -> None:
        """The screen says when other keys work."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def on_resize(self) -> None:
        """Others fit."""
        self.call_after_refresh(self.renew)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if screen.app.app_focus and self.is_attached and screen is self.screen:
            self.call_after_refresh(self.renew)

    def renew(self) -> None:
        """Shows the keys that work now."""
        if not self.is_attached or self._pruning:  # it comes later than the end of the screen
            return
        shown = self._fitting()
        if shown != self.shown:
            self.shown = shown
            self.refresh()

    def render(self) -> Content:
        """Each key with what it does."""
        return Content(" ").join(
            _content(one, is_under_mouse=one is self._under_mouse) for one in self.shown
        )

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Presses the key, or rings where it is not possible now."""
        if (found := self._at(event.x)) is not None:
            if found[2]:
                self.app.simulate_key(found[0].key)
            else:
                self.app.bell()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Marks the key, and says more of it."""
        self._mark(self._at(event.x))

    def on_leave(self) -> None:
        """Marks none."""
        self._mark(None)

    def _mark(self, found: Shown | None) -> None:
        if found is not self._under_mouse:
            self._under_mouse = found
            self.tooltip = None if found is None else found[3] or None
            self.refresh()

    def _at(self, column: int) -> Shown | None:
        """The key in a column; None between two, and behind the last."""
        end = 0
        for one in self.shown:
            begin, end = end, end + _columns(one)
            if begin <= column < end:
                return one
            end += 1
        return None

    def _fitting(self) -> list[Shown]:
        last = len(self._first)
        ordered = sorted(self._working(), key=lambda one: self._first.get(one[0].id or "", last))
        fitting, room = [], self.size.width or self.app.size.width
        for one in ordered:
            room -= _columns(one)
            if room < 0:
                break
            room -= 1  # the space between two
            fitting.append(one)
        return fitting

    def _working(self) -> Iterator[Shown]:
        """The first key of each action that has words."""
        found: set[str] = set()
        for _, binding, enabled, tooltip in self.screen.active_bindings.values():
            if binding.show and binding.action not in found:
                found.add(binding.action)
                if words := self._words_of(binding.action):
                    binding = replace(binding, description=words)
                yield binding, self.app.get_key_display(binding), enabled, tooltip


def _columns(one: Shown) -> int:
    return cell_len(f"{one[1]} {one[0].description}")


def _content(one: Shown, *, is_under_mouse: bool) -> Content:
    binding, key, enabled, _ = one
    content = Content.assemble(
        (key, "bold $footer-key-foreground on $footer-key-background"),
        (
            f" {binding.description}",
            "$footer-description-foreground on $footer-description-background",
        ),
    ).stylize_before("on $footer-item-background")
    if is_under_mouse:
        content = content.stylize("$footer-key-foreground on $block-hover-background")
    return content if enabled else content.stylize("dim")
