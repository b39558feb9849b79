"""Cuts Markdown that arrives in pieces into stretches, each of which can be parsed alone.

A widget that has to show a whole long answer is laid out whole with each word that is added. So an
answer is a column of documents, and only the last one changes. Cut is only where a new block begins
for certain: after an empty line, outside a fence, before a character that continues no list.
"""

from __future__ import annotations

import re

STRETCH_CHARACTERS = 600
"""A stretch ends at the first place after so many: what is laid out anew with each word."""
_FENCE = re.compile(r"[ >]*(?:(?:[-*+]|\d+[.)])[ ]+)*(`{3,}|~{3,})(.*)")
_MAY_CONTINUE = frozenset(" \t>-*+0123456789")


class MarkdownSplitter:
    """Knows where it is in the text that it was fed."""

    def __init__(self, target_characters: int = STRETCH_CHARACTERS) -> None:
        self._target = target_characters
        self._length = 0
        self._line = ""
        self._fence = ""
        self._after_empty_line = False

    def feed(self, text: str) -> list[str]:
        """The text, cut: the first part belongs to the open stretch, each other one opens one."""
        parts, begin = [], 0
        for position, line in _lines(text):
            if self._begins_block(line):
                parts.append(text[begin:position])
                begin, self._length = position, 0
            self._take(line)
        parts.append(text[begin:])
        return parts

    def _begins_block(self, line: str) -> bool:
        return (
            self._length >= self._target
            and not self._line
            and self._after_empty_line
            and not self._fence
            and line[0] != "\n"
            and line[0] not in _MAY_CONTINUE
        )

    def _take(self, piece: str) -> None:
        # A line, or what there is of one.
        self._length += len(piece)
        self._line += piece
        if not piece.endswith("\n"):
            return
        line, self._line = self._line.rstrip("\n"), ""
        self._after_empty_line = not line.strip()
        found = _FENCE.match(line)
        if found is None:
            return
        mark, rest = found.groups()
        if not self._fence:
            self._fence = mark if "`" not in rest or mark[0] == "~" else ""
        elif mark.startswith(self._fence) and not rest.strip():
            self._fence = ""


def _lines(text: str) -> list[tuple[int, str]]:
    # As splitlines, but only where the parser sees ends of lines; with where each begins.
    lines, begin = [], 0
    while begin < len(text):
        end = text.find("\n", begin) + 1 or len(text)
        lines.append((begin, text[begin:end]))
        begin = end
    return lines
