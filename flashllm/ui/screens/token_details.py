"""What one token of an answer cost, next to the answer's median; left and right switch tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from flashllm.telemetry.formatting import PART_WORDS
from flashllm.ui.commands.bindings import TOKEN_BINDINGS
from flashllm.ui.commands.keys import format_page_text
from flashllm.ui.panels.bars import stacked
from flashllm.ui.screens.page import Page
from flashllm.units import format_bytes_moved, format_rate, format_seconds
from flashllm.untrusted.terminal import sanitize

if TYPE_CHECKING:
    from flashllm.telemetry.token_report import TokenNumbers

_NAME, _VALUE, _BAR = 18, 28, 16
"""Widths in characters."""
_WIDE = 70
"""Of a screen that has room for them all."""
_TEXT_MOST = 40
_VISIBLE = str.maketrans("\n\t ", "⏎⇥·")
Words = Callable[[float], str]


class Row(NamedTuple):
    """One number, and what it usually is."""

    name: str
    value: str
    median: str = ""


class TokenView(Page[None]):
    """The numbers of one of `tokens`, which may not be empty; Escape closes."""

    BINDINGS: ClassVar[list[BindingType]] = [*TOKEN_BINDINGS]
    DEFAULT_CSS: ClassVar[str] = """
    TokenView {
        align: center middle;
    }

    TokenView > VerticalScroll {
        width: 76;
        max-width: 100%;
        height: auto;
        max-height: 100%;
        padding: 0 1;
        border: round $border;
        background: $surface;
    }

    TokenView Static {
        height: auto;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    def __init__(self, tokens: Sequence[TokenNumbers], index: int = -1) -> None:
        super().__init__()
        from flashllm.telemetry.token_report import (
            medians,  # with numpy, which the first frame does without
        )

        assert tokens, "there is no token to show"
        self._tokens = tokens
        self._medians = medians(tokens)
        self.place = range(len(tokens))[index]
        """In `tokens`, of the one that is shown."""

    def compose(self) -> ComposeResult:
        """One text that scrolls where the screen is small."""
        with VerticalScroll():
            yield Static(markup=False)

    def on_mount(self) -> None:
        """Shows the token that was asked for."""
        self.action_go(0)

    def action_go(self, steps: int) -> None:
        """Goes so many tokens on, and not beyond the ends."""
        self.place = min(max(self.place + steps, 0), len(self._tokens) - 1)
        frame = self.query_one(VerticalScroll)
        token, last = self._tokens[self.place], self._tokens[-1]
        frame.border_title = f"token {token.index + 1} of {last.index + 1}"
        frame.border_subtitle = format_page_text(self, "Left, Right: other tokens; Esc closes")
        self.query_one(Static).update(self.text())

    def on_resize(self) -> None:
        """Narrow screens have no room for bars."""
        self.action_go(0)

    def text(self) -> Content:
        """All lines of the token that is shown."""
        token, wide = self._tokens[self.place], self.size.width >= _WIDE
        rows = [*_rows(token, self._medians), *_part_rows(token, self._medians, wide)]
        lines = [_quoted(token.text), *(_line(row, wide) for row in rows)]
        return Content("\n").join(Content(line) for line in lines)


def _quoted(text: str) -> str:
    """A token's text on one line, harmless, and with what cannot be seen made visible."""
    clean = sanitize(text).translate(_VISIBLE)
    clean = "".join(c if c.isprintable() else f"<{ord(c):X}>" for c in clean)
    if not clean:
        return "(no text of its own: a part of a character, or of a stop string)"
    return clean if len(clean) <= _TEXT_MOST else clean[: _TEXT_MOST - 1] + "…"


def _rows(token: TokenNumbers, median: dict[str, float]) -> list[Row]:
    def beside(name: str, words: Words) -> str:
        return words(median[name]) if name in median else ""

    sizes = " ".join(f"{count}×{_size(least)}" for least, count in token.sizes)
    return [
        Row("", "with its prompt" if token.prompt else "this token", "median of the answer"),
        Row("time", format_seconds(token.wall_ns), beside("wall_ns", format_seconds)),
        Row(
            "read from flash",
            format_bytes_moved(token.bytes_read),
            beside("bytes_read", format_bytes_moved),
        ),
        Row("reads", f"{token.reads:.0f}", beside("reads", "{:.0f}".format)),
        Row("  of", format_bytes_moved(token.read_bytes), beside("read_bytes", format_bytes_moved)),
        Row("  sizes, from", sizes or "none"),
        Row("  at once", f"{token.depth_mean:.1f}", beside("depth_mean", "{:.1f}".format)),
        Row("neurons in DRAM", _percent(token.hit_rate), beside("hit_rate", _percent)),
        Row("  of them", f"{token.hits:,} hits, {token.misses:,} misses"),
        Row("flash gave", _rate(token), beside("flash_bytes_per_second", format_rate)),
        Row("of the bound", _bound(token), beside("of_bound", _percent)),
    ]


def _part_rows(token: TokenNumbers, median: dict[str, float], bars: bool) -> list[Row]:
    """The parts of the time that took any, with bars where there is room."""
    whole = sum(ns for _, ns in token.parts)
    rows = []
    for name, ns in token.parts:
        usual = median.get(name, 0.0)
        if ns or usual:
            (cells,) = stacked([ns], whole, _BAR if bars else 0)
            bar = f"{'█' * cells:<{_BAR}} " if bars else ""
            rows.append(Row(PART_WORDS[name], bar + format_seconds(ns), format_seconds(usual)))
    return rows


def _line(row: Row, wide: bool) -> str:
    if wide:
        return f"{row.name:<{_NAME}}{row.value:<{_VALUE}} {row.median}".rstrip()
    median = f" ({row.median})" if row.median else ""
    return f"{row.name:<{_NAME}}{row.value}{median}"


def _size(least: int) -> str:
    """The least of a class of sizes, which are powers of two: `4K`."""
    for unit, power in (("M", 20), ("K", 10)):
        if least >= 1 << power:
            return f"{least >> power}{unit}"
    return str(least)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _rate(token: TokenNumbers) -> str:
    if token.flash_bytes_per_second is None:
        return "nothing was read"
    rate = format_rate(token.flash_bytes_per_second)
    if token.of_profile is None:
        return f"{rate} of unknown"
    return f"{rate}, {100 * token.of_profile:.0f} % of {token.profile_name}"


def _bound(token: TokenNumbers) -> str:
    if token.of_bound is None:
        return "unknown"
    return f"{100 * token.of_bound:.0f} % ({format_seconds(token.bound_ns or 0)} by {token.binds})"
