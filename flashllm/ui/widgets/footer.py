"""The line of keys at the bottom: Textual's, made anew only where it would say something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

Shown = tuple[Binding, str, bool, str]
"""A binding with its key in words, whether it is possible now, and its tooltip."""


class KeyFooter(Footer):
    """The keys that work now, as many as fit; `first` names bindings from the most useful on.

    `words_of` says what an action would do now, or nothing where its binding's words hold.

    Whenever the engine begins to do something else, Textual makes all of its widgets anew; that was
    half of what the application computed while an answer began, and mostly nothing had changed.
    """

    def __init__(
        self, first: Sequence[str] = (), words_of: Callable[[str], str | None] = lambda _: None
    ) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._words_of = words_of
        self._first = {name: place for place, name in enumerate(first)}
        self._made_of: list[Shown] | None = None

    def compose(self) -> ComposeResult:
        """One widget for each key."""
        for binding, key, enabled, tooltip in self._made_of or ():
            made = FooterKey(
                binding.key,
                key,
                binding.description,
                binding.action,
                disabled=not enabled,
                tooltip=tooltip,
            )
            # Not bound to the footer's, as Textual does it: that would keep each one for ever.
            made.compact = self.compact
            yield made

    def on_resize(self) -> None:
        """Others fit."""
        self.call_after_refresh(self.recompose)

    async def recompose(self) -> None:
        """Makes the widgets anew, if they would differ."""
        if not self.is_attached or self._pruning:  # it comes later than the end of the screen
            return
        made_of = self._fitting()
        if made_of != self._made_of:
            self._made_of = made_of
            await super().recompose()

    def _fitting(self) -> list[Shown]:
        by_action: dict[str, Shown] = {}
        for _, binding, enabled, tooltip in self.screen.active_bindings.values():
            if binding.show:
                if words := self._words_of(binding.action):
                    binding = replace(binding, description=words)
                shown = (binding, self.app.get_key_display(binding), enabled, tooltip)
                by_action.setdefault(binding.action, shown)
        last = len(self._first)
        ordered = sorted(
            by_action.values(), key=lambda shown: self._first.get(shown[0].id or "", last)
        )
        fitting, room = [], self.size.width or self.app.size.width
        for shown in ordered:
            room -= cell_len(f"{shown[1]} {shown[0].description}")
            if room < 0:
                break
            room -= 1  # the space between two
            fitting.append(shown)
        return fitting
