"""What the chat's processes take: memory, descriptors and threads, four times a second."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Any

import psutil

APPLICATION, ENGINE, OTHER = "application", "engine", "other"
_ENGINE_CODE = "flashllm.engine.process.worker"
LOOK_SECONDS = 0.25
LOG_EVERY = 4
"""Each of so many looks is a line of the log; all of them count for the peak."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process takes."""

    role: str
    pid: int
    rss_bytes: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Look:
    """All processes at one moment."""

    seconds: float
    """Since the start of the soak."""
    processes: tuple[ProcessUse, ...]

    @property
    def rss_bytes(self) -> int:
        """Resident memory of all of them."""
        return sum(one.rss_bytes for one in self.processes)

    def of(self, role: str) -> ProcessUse | None:
        """The process of a role; None where it is not there."""
        return next((one for one in self.processes if one.role == role), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": "look",
            "seconds": round(self.seconds, 2),
            "rss_bytes": self.rss_bytes,
            "processes": [asdict(one) for one in self.processes],
        }


def engine_of(pid: int) -> psutil.Process | None:
    """The engine's process of the chat `pid`."""
    for child in psutil.Process(pid).children():
        try:
            if any(_ENGINE_CODE in word for word in child.cmdline()):
                return child
        except psutil.Error:
            continue
    return None


def look_at(pid: int, seconds: float) -> Look:
    """What the chat `pid` and all processes that it started take; none if it has gone."""
    try:
        application = psutil.Process(pid)
        children = application.children(recursive=True)
        commands = {pid: application.cmdline()}
    except psutil.Error:
        return Look(seconds, ())
    found = [_use(APPLICATION, application)]
    for child in children:
        try:
            commands[child.pid] = command = child.cmdline()
            # What has not become another program yet still shows its parent's memory as its own.
            if command == commands.get(child.ppid()):
                continue
        except psutil.Error:
            continue
        is_engine = any(_ENGINE_CODE in word for word in command)
        found.append(_use(ENGINE if is_engine else OTHER, child))
    return Look(seconds, tuple(one for one in found if one is not None))


def _use(role: str, process: psutil.Process) -> ProcessUse | None:
    try:
        with process.oneshot():
            rss_bytes = int(process.memory_info().rss)
            use = ProcessUse(role, process.pid, rss_bytes, process.num_fds(), process.num_threads())
    except psutil.Error:  # it has just ended
        return None
    return use if rss_bytes else None  # a zombie has nothing


class Watch:
    """Looks at the processes on a thread of its own, and writes the log."""

    def __init__(self, pid: int, log: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.looks: list[Look] = []
        self._pid = pid
        self._log = log
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self._began

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def write(self, line: dict[str, Any]) -> None:
        """Adds a line to the log."""
        with self._lock:
            self._log.write(f"{json.dumps(line)}\n")
            self._log.flush()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(LOOK_SECONDS):
            look = look_at(self._pid, self.seconds)
            if not look.processes:
                continue
            self.looks.append(look)
            if number % LOG_EVERY == 0:
                self.write(look.to_json())
            number += 1
