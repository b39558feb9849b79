"""The line of keys at the bottom: Textual's, made anew only where it would say something else."""

from __future__ import annotations

from textual.binding import Binding
from textual.widgets import Footer


class KeyFooter(Footer):
    """The keys that work now.

    Whenever the engine begins to do something else, Textual makes all of its widgets anew; that was
    half of what the application computed while an answer began, and mostly nothing had changed.
    """

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._made_of: list[tuple[Binding, str, bool, str]] | None = None

    async def recompose(self) -> None:
        """Makes the widgets anew, if they would differ."""
        if not self.is_attached or self._pruning:  # it comes later than the end of the screen
            return
        made_of = [
            (binding, self.app.get_key_display(binding), enabled, tooltip)
            for _, binding, enabled, tooltip in self.screen.active_bindings.values()
            if binding.show
        ]
        if made_of != self._made_of:
            self._made_of = made_of
            await super().recompose()
