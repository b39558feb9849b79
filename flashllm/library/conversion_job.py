"""Conversion in a process of its own, in the background.

To stop, the process gets SIGTERM; the converter then removes what it wrote and keeps what training
can continue from. A process that does not end is killed. SIGINT is not used, since it may be
ignored: shells start background processes of scripts so. If the application is killed, writing the
next line of progress fails, and the converter stops likewise.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from flashllm.errors import EXIT_INTERRUPTED, CannotCreate, Interrupted, UsageError
from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.library.conversion_events import (
    LINE_BYTES_MAX,
    PhaseEvent,
    PlanEvent,
    SummaryEvent,
    TextEvent,
    WarningEvent,
    parse_event,
)
from flashllm.library.conversion_options import TRAIN, ConvertOptions
from flashllm.library.runtime_memory import PACKAGE_PARENT

KILL_SECONDS = 15.0
"""How long a stopped process may take to end: it removes gigabytes."""
LINES_KEPT = 20
WARNINGS_MAX = 20
ESTIMATE_SECONDS = 1.0
"""Earlier than that, an estimate of the time left would be a guess."""
_STOPPED = (Interrupted.exit_code, EXIT_INTERRUPTED)


class JobState(Enum):
    """State of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment; texts are clean."""

    state: JobState = JobState.WAITING
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0
    """Seconds since the phase began."""
    whole_share: float | None = None
    """The share of all phases that is done; None where the process does not say."""
    whole_seconds_left: float | None = None
    plan: tuple[str, ...] = ()
    """Lines about what is made."""
    summary: tuple[str, ...] = ()
    """Lines about what was made."""
    warnings: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.state in (JobState.DONE, JobState.STOPPED, JobState.FAILED)

    @property
    def share(self) -> float:
        """The share of the phase that is done."""
        return self.done_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the phase ends, at its speed so far; None while that is unknown."""
        if not self.done_bytes or self.seconds < ESTIMATE_SECONDS:
            return None
        return self.seconds * (self.total_bytes / self.done_bytes - 1)


OnEvent = Callable[["ConvertJob"], None]


class ConvertJob:
    """One conversion. `on_event` is called on the job's own thread, after every change."""

    def __init__(
        self,
        source: Path,
        destination: Path,
        options: ConvertOptions | None = None,
        *,
        command: Sequence[str] | None = None,
        kill_seconds: float = KILL_SECONDS,
    ) -> None:
        self.source = Path(source).absolute()
        self.destination = Path(destination).absolute()
        self.options = options or ConvertOptions()
        self._command = list(command) if command is not None else self._usual_command()
        self._kill_seconds = kill_seconds
        self._status = JobStatus()
        self._lock = threading.Lock()
        self._existed = os.path.lexists(self.destination)
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._on_event: OnEvent = lambda _: None

    @property
    def status(self) -> JobStatus:
        """Its status; from any thread."""
        with self._lock:
            return self._status

    @property
    def resumable(self) -> bool:
        """Whether the same job, started again, would continue from what this one has trained."""
        return self.options.predictors == TRAIN

    def start(self, on_event: OnEvent) -> None:
        """Starts the process; `CannotCreate` if that fails."""
        assert self._process is None, "a job runs once"
        self._on_event = on_event
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=PACKAGE_PARENT,
                start_new_session=True,  # a Ctrl-C on the terminal is for the application
            )
        except OSError as problem:
            raise CannotCreate(f"no process to convert in: {problem.strerror}") from problem
        self._change(state=JobState.RUNNING)
        self._thread = threading.Thread(target=self._follow, name="conversion", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stops the process, by force after a while; returns at once."""
        with self._lock:
            if self._status.state is not JobState.RUNNING:
                return
            self._status = replace(self._status, state=JobState.STOPPING)
        self._on_event(self)
        self._signal(signal.SIGTERM)
        killer = threading.Timer(self._kill_seconds, self._signal, [signal.SIGKILL])
        killer.daemon = True
        killer.start()

    def close(self, seconds: float = KILL_SECONDS) -> None:
        """Ends the process and waits for that; kills it if it takes too long."""
        self.cancel()
        self.wait(seconds)
        if not self.status.is_over:
            self._signal(signal.SIGKILL)
            self.wait(1.0)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end; whether it has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        return self.status.is_over

    def _usual_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "flashllm", "convert"),
            *("--progress", "jsonl", *self.options.arguments()),
            *("--", str(self.source), str(self.destination)),
        ]

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)  # with whatever it has started
            else:
                process.send_signal(number)

    def _change(self, **changes: object) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]
        self._on_event(self)

    def _follow(self) -> None:
        process = self._process
        assert process is not None
        assert process.stderr is not None
        with process.stderr as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                self._take(line)
        self._end(process.wait())

    def _take(self, line: bytes) -> None:
        event = parse_event(line.strip())
        if isinstance(event, TextEvent):
            self._lines.append(event.text)
        elif isinstance(event, PhaseEvent):
            self._change(
                phase=event.phase,
                done_bytes=event.done_bytes,
                total_bytes=event.total_bytes,
                seconds=event.seconds,
                whole_share=event.whole_share,
                whole_seconds_left=event.whole_seconds_left,
            )
        elif isinstance(event, PlanEvent):
            self._change(plan=event.lines)
        elif isinstance(event, SummaryEvent):
            self._change(summary=event.lines)
        elif isinstance(event, WarningEvent):
            warnings = (*self.status.warnings, event.text)
            self._change(warnings=warnings[:WARNINGS_MAX])

    def _end(self, code: int) -> None:
        stopped = self.status.state is JobState.STOPPING or code in _STOPPED
        is_made = os.path.isfile(self.destination / MANIFEST_FILE)
        if is_made and (code == 0 or (stopped and not self._existed)):
            self._change(state=JobState.DONE)  # a stop may come when the model is complete
        elif stopped:
            self._change(state=JobState.STOPPED, error=self._format_stop(code))
        else:
            self._change(state=JobState.FAILED, error=self._format_failure(code))

    def _format_stop(self, code: int) -> str:
        if code == -signal.SIGKILL:
            return (
                "killed, since it did not stop; what it had written is removed when something is"
                " converted to the same place"
            )
        kept = "; what is trained is kept for the next time" if self.resumable else ""
        return f"stopped; nothing was made{kept}"

    def _format_failure(self, code: int) -> str:
        said = [line.removeprefix("flashllm: ") for line in self._lines if line]
        told = [line for line in self._lines if line.startswith("flashllm: ")]
        if told:
            return told[-1].removeprefix("flashllm: ")
        if code < 0:
            return f"ended by signal {-code}; where memory is short, close programs and try again"
        return said[-1] if said else f"ended with code {code}, and said nothing"


class Conversions:
    """Runs at most one conversion at a time, and notifies listeners of its progress."""

    def __init__(self, make: Callable[..., ConvertJob] = ConvertJob) -> None:
        self.job: ConvertJob | None = None
        self.seen: ConvertJob | None = None
        """The job whose end was looked at."""
        self._make = make
        self._listeners: list[OnEvent] = []

    @property
    def is_running(self) -> bool:
        """Whether one is under way."""
        return self.job is not None and not self.job.status.is_over

    @property
    def is_news(self) -> bool:
        """Whether a conversion is running, or has ended and nobody has looked at the result."""
        return self.job is not None and self.job is not self.seen

    def listen(self, listener: OnEvent) -> Callable[[], None]:
        """Calls `listener` after every change, on the job's thread; the result ends that."""
        self._listeners.append(listener)

        def stop() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return stop

    def start(
        self, source: Path, destination: Path, options: ConvertOptions | None = None
    ) -> ConvertJob:
        """Begins a conversion; `UsageError` while another is under way."""
        if self.job is not None and self.is_running:
            raise UsageError(
                f"{self.job.source.name} is being converted; wait for it, or stop it first"
            )
        job = self._make(source, destination, options)
        job.start(self._notify)
        self.job = job  # not before: one that cannot begin is never over
        return job

    def close(self, seconds: float = KILL_SECONDS) -> None:
        """Ends the conversion that is under way, before the application ends."""
        if self.job is not None:
            self.job.close(seconds)

    def _notify(self, job: ConvertJob) -> None:
        for listener in list(self._listeners):
            listener(job)
