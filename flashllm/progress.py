"""Progress of long work: a bar with ETA on a terminal, plain lines elsewhere.

For other programs there is a JSON object per line; `flashllm.library.conversion_job` reads these.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Literal, Protocol, TextIO, get_args

from flashllm.json_schema import with_schema

if TYPE_CHECKING:
    import rich.progress


MB = 1_000_000
LINE_SECONDS = 0.2
"""The least time between two JSON lines of one phase."""

ProgressKind = Literal["auto", "plain", "jsonl", "none"]
PROGRESS_KINDS: tuple[str, ...] = get_args(ProgressKind)


class Progress(Protocol):
    """Receives the converter's progress; all methods must be called from the converter's thread."""

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins; the previous one, if any, is over."""

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""

    def warn(self, text: str) -> None:
        """A warning to the user; work goes on."""

    def finish(self) -> None:
        """The phase is over, or everything is; harmless if nothing has begun."""


class SilentProgress:
    """Reports nothing."""

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


class JsonlProgress:
    """One JSON object a line: {"event": "phase" | "warning" | "end", ...}, flushed at once.

    "phase" has the name, done_bytes, total_bytes and seconds since the phase began. The first line
    of a phase has 0 bytes done; its last one has all, if the phase was completed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase = ""
        self._total_bytes = 0
        self._done_bytes = 0
        self._start_ns = 0
        self._line_ns = 0

    def start(self, phase: str, total_bytes: int) -> None:
        """A line with nothing done."""
        self._phase, self._total_bytes, self._done_bytes = phase, max(total_bytes, 1), 0
        self._start_ns = time.monotonic_ns()
        self._show()

    def advance(self, nbytes: int) -> None:
        """A line, unless one was just written; always at the end of the phase."""
        self._done_bytes = min(self._done_bytes + nbytes, self._total_bytes)
        waited = time.monotonic_ns() - self._line_ns > LINE_SECONDS * 1e9
        if self._phase and (waited or self._done_bytes == self._total_bytes):
            self._show()

    def warn(self, text: str) -> None:
        """A line."""
        self._line({"event": "warning", "text": text})

    def finish(self) -> None:
        """A line, where a phase had begun."""
        if self._phase:
            self._phase = ""
            self._line({"event": "end"})

    def _show(self) -> None:
        self._line_ns = time.monotonic_ns()
        seconds = (self._line_ns - self._start_ns) / 1e9
        self._line(
            {
                "event": "phase",
                "phase": self._phase,
                "done_bytes": self._done_bytes,
                "total_bytes": self._total_bytes,
                "seconds": round(seconds, 3),
            }
        )

    def _line(self, values: dict[str, object]) -> None:
        # Names of files may hold bytes that are no text; as escapes they pass every stream.
        print(json.dumps(with_schema(values)), file=self._stream, flush=True)


def progress_for(stream: TextIO | None = None, kind: ProgressKind = "auto") -> Progress:
    """The progress that was asked for, or that fits the stream (stderr unless given)."""
    stream = sys.stderr if stream is None else stream
    if kind == "none":
        return SilentProgress()
    if kind == "jsonl":
        return JsonlProgress(stream)
    return TerminalProgress(stream) if kind == "auto" and stream.isatty() else PlainProgress(stream)


TRAINING_LINE_SECONDS = 10.0


class LineProgress:
    """Plain lines on a stream, one every ten seconds at most, with the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._phase = ""
        self._total_bytes = self._done_bytes = 0
        self._started = self._shown = 0.0

    def start(self, phase: str, total_bytes: int) -> None:
        """Start the clock."""
        self.finish()
        self._phase, self._total_bytes, self._done_bytes = phase, max(total_bytes, 1), 0
        self._started = self._shown = time.monotonic()

    def advance(self, nbytes: int) -> None:
        """A line, if the last one is old enough."""
        self._done_bytes += nbytes
        now = time.monotonic()
        if now - self._shown >= TRAINING_LINE_SECONDS:
            self._shown = now
            left = (now - self._started) * (self._total_bytes / max(1, self._done_bytes) - 1)
            share = 100 * self._done_bytes / self._total_bytes
            self._line(f"{self._phase}: {share:.0f} %, about {left:.0f} s left")

    def warn(self, text: str) -> None:
        """A line."""
        self._line(f"warning: {text}")

    def finish(self) -> None:
        """A line with the time it took, where a phase had begun."""
        if self._phase:
            self._line(f"{self._phase}: done in {time.monotonic() - self._started:.0f} s")
            self._phase = ""

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
