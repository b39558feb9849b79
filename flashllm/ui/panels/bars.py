"""Bars of characters: sparklines, stacked columns, one bar that is split. Pure, without colours.

Each kind of thing has a character of its own, so that a terminal of no colour shows them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

EIGHTHS = "▁▂▃▄▅▆▇█"
Run = tuple[int, int]
"""A kind, and how many cells of it follow each other."""


def sparkline(
    values: Sequence[float], width: int, low: float = 0.0, high: float | None = None
) -> str:
    """The last `width` values as columns of one line; `high` is the largest where it is None."""
    shown = values[-width:] if width > 0 else ()
    top = max(shown, default=0.0) if high is None else high
    if top <= low:
        return EIGHTHS[0] * len(shown)
    scale = (len(EIGHTHS) - 1) / (top - low)
    return "".join(EIGHTHS[round(min(max(v - low, 0.0), top - low) * scale)] for v in shown)


def stacked(parts: Sequence[float], whole: float, cells: int) -> list[int]:
    """Cells for each part of a bar of which `whole` fills `cells`.

    The ends are rounded, so that the parts together are as long as their sum is.
    """
    found, end, done = [], 0.0, 0
    for part in parts:
        end += part
        place = round(min(end / whole, 1.0) * cells) if whole > 0 else 0
        found.append(place - done)
        done = place
    return found


def columns(bars: Sequence[Sequence[float]], height: int) -> list[list[int]]:
    """Bars side by side, the largest as high as there is room: kinds by row from the top, -1 empty.

    `bars` has one sequence of parts for each column; parts lie on each other in their order.
    """
    whole = max((sum(bar) for bar in bars), default=0.0)
    grid = [[-1] * len(bars) for _ in range(height)]
    for column, bar in enumerate(bars):
        row = height
        for kind, cells in enumerate(stacked(bar, whole, height)):
            for _ in range(cells):
                row -= 1
                grid[row][column] = kind
    return grid


def runs(kinds: Iterable[int]) -> list[Run]:
    """Neighbours of one kind put together."""
    found: list[Run] = []
    for kind in kinds:
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + 1)
        else:
            found.append((kind, 1))
    return found
