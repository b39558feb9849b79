"""Reads the counters of the reader and of the slot pool around each step."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashllm.system.clock import PartClock, now_ns
from flashllm.system.memory import rss_bytes
from flashllm.telemetry.costs import NO_COST, TokenCost
from flashllm.weight_cache.counters import StreamCounters

COUNTS = tuple(field.name for field in dataclasses.fields(StreamCounters))
_COUNTED = operator.attrgetter(*COUNTS)
RSS_EVERY_NS = 100_000_000
"""The resident memory in a token's cost is at most this old."""


@dataclass(slots=True)
class Meter:
    """Reads the counters of reader and slot pool around each step."""

    reader_stats: Any
    counters: StreamCounters
    clock: PartClock = field(default_factory=PartClock)
    _wall_ns: int = 0
    _reader: Mapping[str, Any] | None = None
    _counts: tuple[int, ...] = ()
    _rss_bytes: int = 0
    _rss_ns: int = -RSS_EVERY_NS

    def start(self) -> None:
        """A step begins."""
        self._wall_ns = now_ns()
        self.clock.start()
        if self._reader is None:  # otherwise the end of the step before is the beginning of this
            self._reader = self.reader_stats()
            self._counts = self._counted()

    def reread(self) -> None:
        """Something else was computed since the last step; it does not count for the next one."""
        self._reader = None

    def token(self) -> TokenCost:
        """Ends a step and returns its cost; the time of measuring belongs to `other`."""
        self.clock.switch("other")
        now, before = self.reader_stats(), self._reader
        assert before is not None, "a step that never began"
        counts = self._counted()
        counted = dict(zip(COUNTS, map(operator.sub, counts, self._counts), strict=True))
        self._reader, self._counts = now, counts
        sizes = tuple(map(operator.sub, now["size_histogram"], before["size_histogram"]))
        rss_bytes = self._rss()
        parts_ns = self.clock.stop()
        wall_ns = now_ns() - self._wall_ns
        parts_ns["other"] += wall_ns - sum(parts_ns.values())  # what adding up took
        return TokenCost(
            wall_ns=wall_ns,
            parts_ns=parts_ns,
            bytes_read=now["bytes_read"] - before["bytes_read"],
            bytes_useful=now["bytes_useful"] - before["bytes_useful"],
            reads=now["reads"] - before["reads"],
            io_busy_ns=now["busy_ns"] - before["busy_ns"],
            depth_ns=now["depth_ns"] - before["depth_ns"],
            depth_max=now["depth_max"],
            size_histogram=sizes,
            rss_bytes=rss_bytes,
            **counted,
        )

    def _counted(self) -> tuple[int, ...]:
        counts: tuple[int, ...] = _COUNTED(self.counters)
        return counts

    def _rss(self) -> int:
        """Resident memory, read only every RSS_EVERY_NS: reading takes as long as a small layer."""
        asked_ns = now_ns()
        if asked_ns - self._rss_ns >= RSS_EVERY_NS:
            self._rss_bytes, self._rss_ns = rss_bytes(), asked_ns
        return self._rss_bytes


class NoMeter:
    """Takes the place of a `Meter` and measures nothing, to show what measuring costs."""

    def __init__(self, clock: PartClock) -> None:
        self.clock = clock

    def start(self) -> None:
        """A step begins; stops the clock, which a cancelled step may have left running."""
        self.clock.halt()

    def reread(self) -> None:
        """Does nothing."""

    def token(self) -> TokenCost:
        """A step ends."""
        return NO_COST
