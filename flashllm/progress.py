"""Progress of long work: a bar with ETA on a terminal, plain lines elsewhere.

For other programs there is a JSON object per line; `flashllm.library.conversion_job` reads these.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Literal, Protocol, TextIO, get_args

from flashllm.json_schema import with_schema
from flashllm.schedule import Schedule
from flashllm.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    import rich.progress


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


class ScheduleOnly(SilentProgress):
    """Reports nothing either, but follows a schedule, whose times are asked for afterwards."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase of the schedule begins."""
        self._schedule.start(phase, total_bytes)

    def advance(self, nbytes: int) -> None:
        """More of it is done."""
        self._schedule.advance(nbytes)

    def finish(self) -> None:
        """It is over."""
        self._schedule.finish()


class PlainProgress:
    """One line per tenth of a phase, for logs and pipes."""

    def __init__(self, stream: TextIO, schedule: Schedule | None = None) -> None:
        self._stream = stream
        self._schedule = schedule or Schedule()
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
        self._schedule.start(phase, total_bytes)
        self._line(f"{phase}: {format_bytes(total_bytes)}")

    def advance(self, nbytes: int) -> None:
        """A line when another tenth is done."""
        self._done_bytes += nbytes
        self._schedule.advance(nbytes)
        tenths = min(10, self._done_bytes * 10 // self._total_bytes)
        if tenths > self._tenths:
            self._tenths = tenths
            seconds = max(time.monotonic_ns() - self._start_ns, 1) / 1e9
            speed = format_rate(self._done_bytes / seconds)
            left = format_duration(seconds * (self._total_bytes / self._done_bytes - 1))
            whole = format_whole(self._schedule)
            self._line(
                f"{self._phase}: {tenths * 10} %, {speed}, {left} left{whole and '; '}{whole}"
            )

    def warn(self, text: str) -> None:
        """A line."""
        self._line(f"warning: {text}")

    def finish(self) -> None:
        """Nothing to tidy up."""
        self._phase = ""
        self._schedule.finish()

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class TerminalProgress:
    """A bar with speed and time left, drawn by rich; another one for all phases together."""

    def __init__(self, stream: TextIO, schedule: Schedule | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._schedule = schedule or Schedule()
        self._bar: rich.progress.Progress | None = None
        self._total_bytes, self._done_bytes, self._start_ns = 1, 0, 0

    def start(self, phase: str, total_bytes: int) -> None:
        """A new bar."""
        from rich import progress

        self.finish()
        self._schedule.start(phase, total_bytes)
        self._total_bytes, self._done_bytes = max(total_bytes, 1), 0
        self._start_ns = time.monotonic_ns()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[words]}", markup=False),
            console=self._console,
        )
        self._bar.add_task(phase, total=self._total_bytes, words=format_bytes(total_bytes))
        if self._schedule.phases:
            self._bar.add_task("all", total=1.0, words=_whole_words(self._schedule))
        self._bar.start()

    def advance(self, nbytes: int) -> None:
        """Move the bars."""
        self._schedule.advance(nbytes)
        self._done_bytes += nbytes
        if self._bar is None:
            return
        first, *others = self._bar.task_ids
        self._bar.update(first, advance=nbytes, words=self._words())
        for whole in others:
            words = _whole_words(self._schedule)
            self._bar.update(whole, completed=self._schedule.share, words=words)

    def _words(self) -> str:
        """`1.2 GiB of 3.6 GiB, 310 MB/s, 8 s left`."""
        words = f"{format_bytes(self._done_bytes)} of {format_bytes(self._total_bytes)}"
        seconds = (time.monotonic_ns() - self._start_ns) / 1e9
        if not self._done_bytes or seconds < LINE_SECONDS:
            return words
        left = seconds * (self._total_bytes / self._done_bytes - 1)
        rate = format_rate(self._done_bytes / seconds)
        return f"{words}, {rate}, {format_duration(max(left, 0.0))} left"

    def warn(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(f"warning: {text}", markup=False, highlight=False)

    def finish(self) -> None:
        """Leave the bar as it is and give the terminal back."""
        self._schedule.finish()
        if self._bar is not None:
            for whole in self._bar.task_ids[1:]:  # the next phase goes on with it
                self._bar.remove_task(whole)
            self._bar.stop()
            self._bar = None


class JsonlProgress:
    """One JSON object a line: {"event": "phase" | "warning" | "end", ...}, flushed at once.

    "phase" has the name, done_bytes, total_bytes and seconds since the phase began, and with a
    schedule the share of all phases that is done, and the seconds until the end of all. The first
    line of a phase has 0 bytes done; its last one has all, if the phase was completed.
    """

    def __init__(self, stream: TextIO, schedule: Schedule | None = None) -> None:
        self._stream = stream
        self._schedule = schedule or Schedule()
        self._phase = ""
        self._total_bytes = 0
        self._done_bytes = 0
        self._start_ns = 0
        self._line_ns = 0

    def start(self, phase: str, total_bytes: int) -> None:
        """A line with nothing done."""
        self._phase, self._total_bytes, self._done_bytes = phase, max(total_bytes, 1), 0
        self._start_ns = time.monotonic_ns()
        self._schedule.start(phase, total_bytes)
        self._show()

    def advance(self, nbytes: int) -> None:
        """A line, unless one was just written; always at the end of the phase."""
        self._schedule.advance(nbytes)
        self._done_bytes = min(self._done_bytes + nbytes, self._total_bytes)
        waited = time.monotonic_ns() - self._line_ns > LINE_SECONDS * 1e9
        if self._phase and (waited or self._done_bytes == self._total_bytes):
            self._show()

    def warn(self, text: str) -> None:
        """A line."""
        self._line({"event": "warning", "text": text})

    def finish(self) -> None:
        """A line, where a phase had begun."""
        self._schedule.finish()
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
                **self._whole(),
            }
        )

    def _whole(self) -> dict[str, object]:
        """How far all phases together are."""
        left = self._schedule.seconds_left
        if left is None:
            return {}
        share = round(self._schedule.share, 4)
        return {"whole_share": share, "whole_seconds_left": round(left, 1)}

    def _line(self, values: dict[str, object]) -> None:
        # Names of files may hold bytes that are no text; as escapes they pass every stream.
        print(json.dumps(with_schema(values)), file=self._stream, flush=True)


def format_whole(schedule: Schedule) -> str:
    """`all: 25 %, 3 min left`; "" where nothing is expected."""
    words = _whole_words(schedule)
    return f"all: {words}" if words else ""


def _whole_words(schedule: Schedule) -> str:
    left = schedule.seconds_left
    if left is None:
        return ""
    return f"{100 * schedule.share:.0f} %, {format_duration(left)} left"


def progress_for(
    stream: TextIO | None = None, kind: ProgressKind = "auto", schedule: Schedule | None = None
) -> Progress:
    """The progress that was asked for, or that fits the stream (stderr unless given).

    With a `schedule` it also says how far all phases together are.
    """
    stream = sys.stderr if stream is None else stream
    if kind == "none":
        return SilentProgress() if schedule is None else ScheduleOnly(schedule)
    if kind == "jsonl":
        return JsonlProgress(stream, schedule)
    if kind == "auto" and stream.isatty():
        return TerminalProgress(stream, schedule)
    return PlainProgress(stream, schedule)


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
