"""The neuron map: a row for each layer, a column for each block of neurons.

A character holds two blocks, side by side; the higher its dots, the more it took: nothing, in DRAM,
used, read from flash. So the states can be told apart without colours. What does not fit is put
together with its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from flashllm.ui.panels.bars import runs

if TYPE_CHECKING:
    from flashllm.telemetry.neuron_map import NeuronMap

_BRAILLE = 0x2800
_LEFT, _RIGHT = (0x00, 0x40, 0x46, 0x47), (0x00, 0x80, 0xB0, 0xB8)
"""Dots of the two columns of a character by state: none, the lowest, three, all four."""
COLORS = ("", "$primary", "$success", "$error")
"""By state; of two blocks in a character, that of the higher."""
WORDS = ("", "DRAM", "used", "read")
_LABEL_COLOR = "$foreground 60%"
LEGEND_HEIGHT = 1
ROWS_LEAST = 4


class NeuronMapView(Widget):
    """Shows one map, until the next."""

    DEFAULT_CSS: ClassVar[str] = """
    NeuronMapView {
        height: auto;
        padding: 0 1;
        background: $panel;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._map: NeuronMap | None = None

    def show(self, found: NeuronMap | None) -> None:
        """Another map; None where there is none, or none yet."""
        layers = 0 if self._map is None else self._map.layers
        self._map = found
        self.refresh(layout=found is not None and found.layers != layers)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A row a layer and the legend, but no more than a third of the screen."""
        del container, width
        layers = ROWS_LEAST if self._map is None else self._map.layers
        return LEGEND_HEIGHT + max(min(layers, viewport.height // 3), 1)

    def render(self) -> Content:
        """The rows that there is room for, and what they mean."""
        width, height = self.content_size
        if self._map is None:
            return Content("no map of neurons yet")
        rows = picture(self._map, width, max(height - LEGEND_HEIGHT, 1))
        return Content("\n").join([*rows, legend(self._map)])


def picture(found: NeuronMap, width: int, height: int) -> list[Content]:
    """At most `height` lines of `width` characters: number of the first layer, then blocks."""
    label = len(str(found.layers - 1)) + 1
    small = found.reduced(height, 2 * max(width - label, 1))
    lines = []
    for row, states in enumerate(small.states()):
        first = row * found.layers // small.layers
        cells = _characters(states)
        lines.append(Content.assemble((f"{first:<{label}}", _LABEL_COLOR), *cells))
    return lines


def legend(found: NeuronMap) -> Content:
    """What the characters mean, and the share of all neurons in each state."""
    parts = [
        Content.assemble(
            (chr(_BRAILLE | _LEFT[state] | _RIGHT[state]), COLORS[state]),
            f" {WORDS[state]} {_percent(share)}",
        )
        for state, share in enumerate(found.totals, 1)
    ]
    size = Content.styled(f"{found.layers} x {found.neurons:,} {found.noun}s", _LABEL_COLOR)
    return Content(" ").join([*parts, size])


def _characters(states: bytes) -> list[tuple[str, str]]:
    """Two blocks a character, neighbours of one colour put together."""
    pairs = list(zip(states[::2], [*states[1::2], 0], strict=False))
    text = [chr(_BRAILLE | _LEFT[left] | _RIGHT[right]) for left, right in pairs]
    found, start = [], 0
    for state, length in runs(max(pair) for pair in pairs):
        found.append(("".join(text[start : start + length]), COLORS[state]))
        start += length
    return found


def _percent(share: float) -> str:
    """Short, and nothing is called none that is a little."""
    if 0 < share < 0.00095:
        return "<0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"
