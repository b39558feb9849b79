"""A page over the chat, which is left once."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, ScreenResultType


class Page(ModalScreen[ScreenResultType]):
    """Two keys that come at once both reach the page; the second may not leave another screen."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Leaves the page with a result; does nothing where it was left already."""
        if self not in self.app.screen_stack:
            return AwaitComplete()
        return super().dismiss(result)
