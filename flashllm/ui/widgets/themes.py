"""Themes, and terminals without colour.

With NO_COLOR, or on a terminal that knows fewer than eight colours, no colour is sent at all: what
colours tell otherwise is told by bold, underlined and reversed text.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence

from flashllm.errors import UsageError
from flashllm.untrusted.terminal import sanitize_line

COLOURS_LEAST = 8


def has_colour(environment: Mapping[str, str] | None = None) -> bool:
    """Whether colours are wanted and known; `UsageError` where no screen can be drawn at all."""
    environment = os.environ if environment is None else environment
    terminal = environment.get("TERM", "")
    if terminal in ("", "dumb", "unknown"):
        raise UsageError(
            f"the chat cannot draw on this terminal (TERM is {terminal or 'not set'});"
            " `flashllm run -p TEXT` works on it"
        )
    if environment.get("NO_COLOR"):
        return False
    return environment.get("COLORTERM", "") != "" or _colours(terminal) >= COLOURS_LEAST


def _colours(terminal: str) -> int:
    """How many a terminal knows, by its description; unknown ones are taken for able."""
    import curses

    try:
        curses.setupterm(terminal, 1)
        return curses.tigetnum("colors")
    except (curses.error, OSError, ValueError):
        return COLOURS_LEAST


def ansi_color() -> bool | None:
    """What Textual is told: True leaves colours to a filter that removes them all, greys too."""
    return True if os.environ.get("NO_COLOR") is not None else None


def find_theme(name: str, themes: Sequence[str]) -> str:
    """The theme of that name; `UsageError` with the nearest one."""
    wanted = name.strip().lower()
    if wanted not in themes:
        hint = nearest(wanted, themes) or f"there are {', '.join(themes)}"
        raise UsageError(f"there is no theme {sanitize_line(name)!r}; {hint}")
    return wanted


def nearest(name: str, known: Sequence[str]) -> str:
    """`did you mean 'nord'?`, or nothing where nothing is near."""
    near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else ""
