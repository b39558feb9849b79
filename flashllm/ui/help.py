"""The page of help."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

HELP = """\
Enter         send
Ctrl+J        break the line (Shift+Enter too, where the terminal tells it from Enter)
Esc, Ctrl+C   stop the answer; what is there of it stays
Ctrl+N        begin a new conversation
Ctrl+R        open the model again, after it could not be opened
PgUp, PgDn    scroll
Ctrl+Q        leave

The line below the prompt:
tok           tokens of this answer
tok/s         tokens a second, the prompt apart
MB/tok        read from flash for each token
hit           share of the active neurons that were in memory already
RSS           memory of this process, and its ceiling (--memory)
ctx           tokens of the context in use
"""


class HelpScreen(ModalScreen[None]):
    """Keys, and what the numbers mean; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,enter,q", "dismiss", "Close", key_display="Esc"),
    ]

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with VerticalScroll(id="help"):
            yield Static(HELP, markup=False)
