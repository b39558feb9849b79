"""The program's log: its last lines, and new ones as they come."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import RichLog, Static

from flashllm.ui.commands.bindings import LOG_BINDINGS
from flashllm.ui.screens.page import Page
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.untrusted.terminal import sanitize, sanitize_line

SHOWN_BYTES = 256 << 10
"""Of the end of the file."""
LINES_MAX = 5000
LOOK_SECONDS = 1.0
"""So often it is looked whether the log has grown."""
NOTHING = "Nothing has been logged yet."
_LEVEL = re.compile(r"\d (WARNING|ERROR|CRITICAL) ")
_STYLES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red"}


class LogScreen(Page[None]):
    """Shows the file at `path`, which may be rotated meanwhile; None where nothing is logged."""

    BINDINGS: ClassVar[list[BindingType]] = [*LOG_BINDINGS]
    DEFAULT_CSS = """
    LogScreen { align: center middle; background: $background 60%; }
    LogScreen > Vertical { width: 130; max-width: 100%; height: 90%; border: round $border;
        background: $surface; }
    LogScreen #log-path { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap;
        text-overflow: ellipsis; }
    LogScreen RichLog { height: 1fr; padding: 0 1; background: $surface;
        scrollbar-size-vertical: 1; }
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path
        self._read_from: tuple[int, int] | None = None
        """The file's inode, and how much of it is shown."""
        self._said = ""
        """What stands in place of lines, while there are none."""

    def compose(self) -> ComposeResult:
        """Where the file is, and its lines."""
        with Vertical() as box:
            box.border_title = "Log: events and errors, never questions"
            where = "nowhere" if self._path is None else str(self._path)
            yield Static(Content(sanitize_line(where)), id="log-path")
            yield RichLog(max_lines=LINES_MAX, wrap=True, min_width=1, markup=False)
            yield KeyFooter()

    def on_mount(self) -> None:
        """The arrows scroll at once."""
        self.query_one(RichLog).focus()
        self.call_after_refresh(self._look)
        self.set_interval(LOOK_SECONDS, self._look)

    def action_scroll(self, to_end: bool) -> None:
        """To the first line that is shown, or to the last."""
        log = self.query_one(RichLog)
        (log.scroll_end if to_end else log.scroll_home)(animate=False)

    def _look(self) -> None:
        log, words, lines = self.query_one(RichLog), NOTHING, list[str]()
        is_first = self._read_from is None
        if self._path is not None:
            try:
                lines = self._new_lines(self._path)
            except FileNotFoundError:
                pass  # nothing was logged, or the file is being rotated
            except OSError as error:
                words = f"The log cannot be read: {error.strerror}."
        if is_first and (lines or words != self._said):
            log.clear()
        if is_first and not lines and words != self._said:
            log.write(Text(words))
            self._said = words
        follows = log.is_vertical_scroll_end
        for line in lines:
            log.write(_styled(line), scroll_end=follows)

    def _new_lines(self, path: Path) -> list[str]:
        """Lines that were not shown yet; at first those at the end."""
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            inode, read = self._read_from or (status.st_ino, 0)
            if inode != status.st_ino or read > status.st_size:
                read = 0  # it was rotated: this is a new file
            start = max(read, status.st_size - SHOWN_BYTES)
            file.seek(start)
            raw = file.read(status.st_size - start)
        whole = raw[: raw.rfind(b"\n") + 1]  # a line that is just being written comes later
        if not whole:
            return []
        self._read_from = status.st_ino, start + len(whole)
        lines = whole.decode("utf-8", "replace").split("\n")[:-1]
        return lines[1:] if start > read and len(lines) > 1 else lines


def _styled(line: str) -> Text:
    found = _LEVEL.search(line[:100])
    return Text(sanitize(line), style=_STYLES[found[1]] if found else "")
