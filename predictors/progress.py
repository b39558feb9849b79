"""How training tells what it is doing: the four calls that a display has to offer.

Amounts are bytes of activations, written while recording and read while training.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

LINE_SECONDS = 10.0


class Progress(Protocol):
    """A display of phases, each with a total."""

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins; the one before it, if any, is over."""

    def advance(self, nbytes: int) -> None:
        """So many bytes more are done."""

    def warn(self, text: str) -> None:
        """Something that the user should know and that stops nothing."""

    def finish(self) -> None:
        """The phase is over."""


class SilentProgress:
    """For callers that asked for none."""

    def start(self, phase: str, total_bytes: int) -> None:
        """Nothing."""

    def advance(self, nbytes: int) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


class LineProgress:
    """Plain lines on a stream, one every ten seconds at most, with the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._phase = ""
        self._total_bytes = self._done_bytes = 0
        self._started = self._shown = 0.0

    def start(self, phase: str, total_bytes: int) -> None:
        """Start the clock."""
        self._phase, self._total_bytes, self._done_bytes = phase, max(total_bytes, 1), 0
        self._started = self._shown = time.monotonic()

    def advance(self, nbytes: int) -> None:
        """A line when the last is old enough."""
        self._done_bytes += nbytes
        now = time.monotonic()
        if now - self._shown >= LINE_SECONDS:
            self._shown = now
            left = (now - self._started) * (self._total_bytes / max(1, self._done_bytes) - 1)
            share = 100 * self._done_bytes / self._total_bytes
            self._line(f"{self._phase}: {share:.0f} %, about {left:.0f} s left")

    def warn(self, text: str) -> None:
        """A line."""
        self._line(f"warning: {text}")

    def finish(self) -> None:
        """A line with the time it took."""
        self._line(f"{self._phase}: done in {time.monotonic() - self._started:.0f} s")

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
