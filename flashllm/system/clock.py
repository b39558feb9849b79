"""Clocks: of the parts of a token's time, and of a wait that is under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PARTS = ("predict", "plan", "io_exposed", "manage", "attention", "ffn", "head", "sample", "other")
now_ns = time.perf_counter_ns


class PartClock:
    """Attributes every nanosecond between `start` and `stop` to exactly one part.

    It only records when each part began, and adds up at the end: a layer's weights push everything
    else out of the processor's caches, so each access costs.
    """

    __slots__ = ("_note", "_notes", "_runs", "on_stop")

    def __init__(self) -> None:
        self.on_stop: Callable[[list[Any]], None] | None = None
        """Called with what was recorded of each step: part, time at which it began in ns, next
        part, ..."""
        self._notes: list[Any] = []  # part, time at which it began, next part, ...
        self._note = self._notes.extend
        self._runs = False

    def start(self) -> None:
        """Reset, and count for `other`."""
        self._notes = []
        self._note = self._notes.extend
        self._runs = True
        self._note(("other", now_ns()))

    def switch(self, part: str) -> None:
        """From now on, time belongs to `part`; does nothing unless the clock is running."""
        if self._runs:
            self._note((part, now_ns()))

    def halt(self) -> None:
        """Stop without adding up."""
        self._runs = False

    def stop(self) -> dict[str, int]:
        """Nanoseconds by part since `start`."""
        self.switch("other")
        self._runs = False
        spent_ns = dict.fromkeys(PARTS, 0)
        notes = self._notes
        if self.on_stop is not None:
            self.on_stop(notes)
        for part, begin_ns, end_ns in zip(notes[::2], notes[1::2], notes[3::2], strict=False):
            spent_ns[part] += end_ns - begin_ns
        return spent_ns


class WaitClock:
    """How long the wait that is under way has lasted: one thread waits, any may ask."""

    __slots__ = ("_since_ns",)

    def __init__(self) -> None:
        self._since_ns: int | None = None

    def __enter__(self) -> None:
        self._since_ns = now_ns()

    def __exit__(self, *_: object) -> None:
        self._since_ns = None

    def seconds(self) -> float:
        """Seconds since the wait began; 0 where nobody waits."""
        since_ns = self._since_ns
        return 0.0 if since_ns is None else (now_ns() - since_ns) / 1e9
