"""Where data and remarks go: data to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from flashllm.errors import CannotCreate
from flashllm.json_schema import with_schema
from flashllm.units import format_bytes as format_bytes
from flashllm.untrusted.terminal import Sanitizer, sanitize, sanitize_line

TICK_SECONDS = 0.2
QUIET_SECONDS = 10.0


class Output:
    """Standard output. A terminal gets sanitized text, a file or a pipe gets the text as it is."""

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = sys.stdout if stream is None else stream
        if stream is None:  # the program was started without one
            raise CannotCreate("standard output: is closed, so there is nowhere to write to")
        self._stream = stream
        self._sanitizer = Sanitizer() if self._stream.isatty() else None
        self._at_line_start = True
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> None:
        """Writes text at once; `CannotCreate` if the disk is full."""
        if self._sanitizer is not None:
            text = self._sanitizer.feed(text)
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CannotCreate(f"standard output: cannot be written ({error.strerror})") from error

    def end_line(self) -> None:
        """Ends the line, unless it has just ended."""
        if self._sanitizer is not None:
            self._sanitizer.flush()
        if not self._at_line_start:
            self.write("\n")

    def json(self, values: Mapping[str, Any]) -> None:
        """One object on one line, with the number of its schema; docs/json.md has the fields."""
        self.write(json.dumps(with_schema(values), ensure_ascii=False) + "\n")


def remark(text: str) -> None:
    """One sentence on standard error."""
    print(f"flashllm: {sanitize(text)}", file=sys.stderr)


class Ticker:
    """A line on standard error that is overwritten; shown on terminals only."""

    def __init__(self) -> None:
        self.is_live = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        """Whether standard error is a terminal that can do it."""
        self._shown = False

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self.is_live:
            width = 79
            with contextlib.suppress(OSError):
                width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            print(f"\r{sanitize_line(text)[:width]}\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        """Removes the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False


class PacedLine:
    """How far long work is: a line that a terminal renews, elsewhere a remark now and then."""

    def __init__(self) -> None:
        self._ticker = Ticker()
        self._shown_seconds = time.monotonic()

    def show(self, text: Callable[[], str]) -> None:
        """Shows the text, made only then, if the last one is old enough."""
        now = time.monotonic()
        if now - self._shown_seconds < (TICK_SECONDS if self._ticker.is_live else QUIET_SECONDS):
            return
        self._shown_seconds = now
        if self._ticker.is_live:
            self._ticker.show(text())
        else:
            remark(text())

    def clear(self) -> None:
        """Removes the line."""
        self._ticker.clear()


def table(rows: list[tuple[str, Any]]) -> str:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {sanitize_line(str(value))}\n" for name, value in rows)
