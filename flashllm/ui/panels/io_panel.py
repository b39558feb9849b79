"""The I/O panel: where the time and the bytes of the last tokens went, beside what could be.

Hidden it keeps the last tokens' numbers and computes nothing; shown it renders a few lines, five
times a second at most.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.timer import Timer
from textual.widget import Widget

from flashllm.ui.panels.io_lines import (
    FULL_HEIGHT,
    SMALL_HEIGHT,
    TOKENS,
    Shown,
    full_lines,
    small_lines,
)

if TYPE_CHECKING:
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.costs import PrefillCost
    from flashllm.telemetry.device_rates import DeviceRates
    from flashllm.telemetry.token_report import TokenNumbers

UPDATE_SECONDS = 0.2
FULL_WIDTH, FULL_SCREEN_HEIGHT = 76, 24
"""Smaller places and screens get the small panel: there the bars' names would run into the numbers,
or nothing would be left for the conversation."""


class IoPanel(Widget):
    """Bars of time by part, flash and its share of the profile, hits, bound, prompt, memory."""

    DEFAULT_CSS: ClassVar[str] = """
    IoPanel {
        height: auto;
        padding: 0 1;
        background: $panel;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._tokens: deque[TokenNumbers] = deque(maxlen=TOKENS)
        self._shown = Shown()
        self._due: Timer | None = None

    def show_plan(self, plan: Plan, rates: DeviceRates) -> None:
        """Another model is open: what was shown of the one before is forgotten."""
        self._shown = Shown(plan, rates)
        self._tokens.clear()
        self._later()

    def show_prefill(self, prefill: PrefillCost) -> None:
        """A prompt was read."""
        self._shown.prefill = prefill
        self._later()

    def show_token(self, numbers: TokenNumbers) -> None:
        """One more token came; one that came with its prompt is not among the bars."""
        if not numbers.prompt:
            self._tokens.append(numbers)
            self._later()

    def on_show(self, event: events.Show) -> None:
        """What came while the panel was hidden is shown now."""
        del event
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The same whether there are tokens or not, so that nothing jumps."""
        del container
        is_full = width >= FULL_WIDTH and viewport.height >= FULL_SCREEN_HEIGHT
        return FULL_HEIGHT if is_full else SMALL_HEIGHT

    def render(self) -> Content:
        """All lines; what is too long is cut at the edge."""
        width, height = self.content_size
        self._shown.tokens = tuple(self._tokens)
        lines = full_lines if height >= FULL_HEIGHT else small_lines
        return Content("\n").join(lines(self._shown, width)[: max(height, 1)])

    def _later(self) -> None:
        if self.display and self.is_mounted and self._due is None:
            self._due = self.set_timer(UPDATE_SECONDS, self._update)

    def _update(self) -> None:
        self._due = None
        self.refresh()
