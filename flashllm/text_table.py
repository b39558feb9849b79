"""Tables of text, for all reports."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of cells as text: the first `left` columns left-aligned, the others right-aligned.

    A row may end before the last column.
    """
    return "".join(f"{line}\n" for line in aligned(rows, left))


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """The same, as one string for each row."""
    count = max(len(row) for row in rows)
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(count)]
    lines = []
    for row in rows:
        padded = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines
