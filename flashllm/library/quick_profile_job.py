"""A quick profile of a model's disk, taken by a process of its own at the lowest priority.

The process gives way to answers by itself (`flashllm bench io --background`). Beside a chat it is
followed and ended with it; after `run` nobody waits for it.
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

from flashllm.library.conversion_events import (
    LINE_BYTES_MAX,
    PhaseEvent,
    TextEvent,
    parse_event,
)
from flashllm.library.runtime_memory import PACKAGE_PARENT

CLOSE_SECONDS = 1.0
LINES_KEPT = 20


class QuickProfileState(Enum):
    """State of the process."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class QuickProfileStatus:
    """The job at one moment; texts are clean."""

    state: QuickProfileState = QuickProfileState.RUNNING
    phase: str = ""
    share: float = 0.0
    """Of the phase."""
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self.state is not QuickProfileState.RUNNING


OnStatus = Callable[[QuickProfileStatus], None]


def quick_profile_command(model: Path, leave_bytes: int = 0) -> list[str]:
    """The command line of the process; `leave_bytes` of memory are others' to take."""
    return [
        *(sys.executable, "-m", "flashllm", "bench", "io", "--background"),
        *("--leave", f"{leave_bytes >> 20}MiB", "--", str(model.absolute())),
    ]


def start_detached(model: Path) -> bool:
    """Starts the process and leaves it to itself; False where that fails."""
    try:
        process = subprocess.Popen(
            quick_profile_command(model),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=PACKAGE_PARENT,
            start_new_session=True,  # it outlives the terminal
        )
    except OSError:
        return False
    process.returncode = 0  # nobody waits for it, which Python would warn of at its end
    return True


class QuickProfileJob:
    """One process that measures. `on_status` is called on a thread, after every change."""

    def __init__(
        self,
        model: Path,
        on_status: OnStatus,
        leave_bytes: int = 0,
        *,
        command: Sequence[str] | None = None,
    ) -> None:
        self._command = list(command) if command else quick_profile_command(model, leave_bytes)
        self._on_status = on_status
        self._lock = threading.Lock()
        self._status = QuickProfileStatus()
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @property
    def status(self) -> QuickProfileStatus:
        """Its status; from any thread."""
        with self._lock:
            return self._status

    def start(self) -> None:
        """Starts the process; where that fails, the status says so."""
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
            error = f"no process to measure in: {problem.strerror}"
            self._change(state=QuickProfileState.FAILED, error=error)
            return
        self._thread = threading.Thread(target=self._follow, name="quick-profile", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the process; it leaves nothing but what it has kept already."""
        self._is_stopped = True
        if self._process is None or self._thread is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(signal.SIGTERM)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        process = self._process
        assert process is not None
        assert process.stderr is not None
        with process.stderr as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                event = parse_event(line.strip())
                if isinstance(event, PhaseEvent):
                    share = event.done_bytes / event.total_bytes
                    self._change(phase=event.phase, share=share)
                elif isinstance(event, TextEvent):
                    self._lines.append(event.text)
        code = process.wait()
        if self._is_stopped:
            self._change(state=QuickProfileState.STOPPED)
        elif code == 0:
            self._change(state=QuickProfileState.DONE)
        else:
            last = self._lines[-1] if self._lines else f"it ended with code {code}"
            error = last.removeprefix("flashllm: ")
            self._change(state=QuickProfileState.FAILED, error=error)

    def _change(self, **changes: object) -> None:
        with self._lock:
            self._status = status = replace(self._status, **changes)  # type: ignore[arg-type]
        self._on_status(status)
