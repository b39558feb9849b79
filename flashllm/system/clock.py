"""A clock that attributes the time of a token to its parts."""

from __future__ import annotations

import time
from typing import Any

PARTS = ("predict", "plan", "io_exposed", "manage", "attention", "ffn", "head", "sample", "other")
now_ns = time.perf_counter_ns


class PartClock:
    """Attributes every nanosecond between `start` and `stop` to exactly one part.

    It only writes down when which part began, and adds up at the end: by then the weights of a
    layer have pushed everything else out of the processor's caches, and each touch costs.
    """

    __slots__ = ("_note", "_notes", "_runs")

    def __init__(self) -> None:
        self._notes: list[Any] = []  # part, time at which it began, next part, ...
        self._note = self._notes.extend
        self._runs = False

    def start(self) -> None:
        """Forget what was counted and count for `other`."""
        self._notes = []
        self._note = self._notes.extend
        self._runs = True
        self._note(("other", now_ns()))

    def switch(self, part: str) -> None:
        """From now on, time belongs to `part`; nothing happens outside of `start` and `stop`."""
        if self._runs:
            self._note((part, now_ns()))

    def halt(self) -> None:
        """Count no more, and add nothing up."""
        self._runs = False

    def stop(self) -> dict[str, int]:
        """Nanoseconds by part since `start`."""
        self.switch("other")
        self._runs = False
        spent_ns = dict.fromkeys(PARTS, 0)
        notes = self._notes
        for part, begin_ns, end_ns in zip(notes[::2], notes[1::2], notes[3::2], strict=False):
            spent_ns[part] += end_ns - begin_ns
        return spent_ns
