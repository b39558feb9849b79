"""How long work reports how far it is: a bar with ETA on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    import rich.progress

MB = 1_000_000


class Progress(Protocol):
    """What the converter tells about itself; every method may be called from its thread only."""

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins; the one before it, if any, is over."""

    def advance(self, nbytes: int) -> None:
        """So many bytes more are done."""

    def warn(self, text: str) -> None:
        """Something that the user should know and that stops nothing."""

    def finish(self) -> None:
        """The phase is over, or everything is; harmless when nothing was begun."""


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


class PlainProgress:
    """One line per tenth of a phase, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase = ""
        self._total_bytes = 0
        self._done_bytes = 0
        self._tenths = 0
        self._start_ns = 0

    def start(self, phase: str, total_bytes: int) -> None:
        """A line with the size."""
        self.finish()
        self._phase, self._total_bytes = phase, max(total_bytes, 1)
        self._done_bytes, self._tenths = 0, 0
        self._start_ns = time.monotonic_ns()
        self._line(f"{phase}: {total_bytes / MB:,.1f} MB")

    def advance(self, nbytes: int) -> None:
        """A line when another tenth is done."""
        self._done_bytes += nbytes
        tenths = min(10, self._done_bytes * 10 // self._total_bytes)
        if tenths > self._tenths:
            self._tenths = tenths
            seconds = max(time.monotonic_ns() - self._start_ns, 1) / 1e9
            speed = self._done_bytes / MB / seconds
            left_seconds = seconds * (self._total_bytes / self._done_bytes - 1)
            self._line(
                f"{self._phase}: {tenths * 10} %, {speed:,.0f} MB/s, {left_seconds:,.0f} s left"
            )

    def warn(self, text: str) -> None:
        """A line."""
        self._line(f"warning: {text}")

    def finish(self) -> None:
        """Nothing to tidy up."""
        self._phase = ""

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class TerminalProgress:
    """A bar with speed and time left, drawn by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._bar: rich.progress.Progress | None = None

    def start(self, phase: str, total_bytes: int) -> None:
        """A new bar."""
        from rich import progress

        self.finish()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.add_task(phase, total=max(total_bytes, 1))
        self._bar.start()

    def advance(self, nbytes: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], nbytes)

    def warn(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(f"warning: {text}", markup=False, highlight=False)

    def finish(self) -> None:
        """Leave the bar as it is and give the terminal back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def progress_for(stream: TextIO | None = None) -> Progress:
    """The progress that fits a stream (stderr unless given)."""
    stream = sys.stderr if stream is None else stream
    return TerminalProgress(stream) if stream.isatty() else PlainProgress(stream)
