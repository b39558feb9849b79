"""What was computed and read at which moment: a Gantt chart, for Chrome's and Perfetto's viewers.

The format is Chrome's: a complete event (`X`) has a beginning and a duration in microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import CannotCreate
from flashllm.system.atomic_file import replacing
from flashllm.system.clock import PartClock

EVENTS_MAX = 1 << 19
"""Parts of steps that are kept; later ones are not."""
_COMPUTE, _STEPS, _FIRST_READ = 1, 2, 10  # lanes


class TimedReader(Protocol):
    """A reader that notes when reads begin and end."""

    def keep_read_times(self, keep: bool, /) -> None:
        """From now on, or no longer."""

    def take_read_times(self) -> NDArray[np.int64]:
        """Beginning and end of each, in ns."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took its time."""

    name: str
    begin_ns: int
    end_ns: int


class StepTrace:
    """Records steps of a model while it is on; a context manager."""

    def __init__(self, clock: PartClock, reader: TimedReader) -> None:
        self.parts: list[Slice] = []
        """One after the other."""
        self.steps: list[Slice] = []
        """Prompts and tokens that were measured."""
        self.reads: NDArray[np.int64] = np.empty((0, 2), np.int64)
        """Beginning and end of each, in ns of the same clock; known at the end."""
        self._clock, self._reader = clock, reader

    def __enter__(self) -> StepTrace:
        self._clock.on_stop = self._note
        self._reader.keep_read_times(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.on_stop = None
        self.reads = self._reader.take_read_times().reshape(-1, 2)
        self._reader.keep_read_times(False)

    def _note(self, notes: Sequence[Any]) -> None:
        if len(self.parts) >= EVENTS_MAX or not notes:
            return
        for part, begin_ns, end_ns in zip(notes[::2], notes[1::2], notes[3::2], strict=False):
            if end_ns > begin_ns:
                self.parts.append(Slice(part, begin_ns, end_ns))
        self.steps.append(Slice(f"step {len(self.steps) + 1}", notes[1], notes[-1]))

    @property
    def begin_ns(self) -> int:
        """The first moment of it."""
        return self.steps[0].begin_ns if self.steps else 0

    def write(self, path: Path) -> None:
        """Writes it as JSON; `CannotCreate`."""
        try:
            with replacing(path) as part, part.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                file.write(",\n".join(json.dumps(event) for event in self._named_lanes()))
                for event in self._events():
                    file.write(",\n" + json.dumps(event))
                file.write("\n]}\n")
        except OSError as error:
            raise CannotCreate(f"{path}: cannot be written: {error.strerror}") from error

    def _named_lanes(self) -> Iterator[dict[str, Any]]:
        names = {_COMPUTE: "compute", _STEPS: "steps"}
        lanes = max((lane for lane, _ in self.read_lanes()), default=-1) + 1
        names |= {_FIRST_READ + lane: f"read {lane + 1}" for lane in range(lanes)}
        for lane, name in names.items():
            yield {"name": "thread_name", "ph": "M", "pid": 1, "tid": lane, "args": {"name": name}}

    def _events(self) -> Iterator[dict[str, Any]]:
        for lane, slices in ((_STEPS, self.steps), (_COMPUTE, self.parts)):
            for one in slices:
                yield self._event(lane, one)
        for lane, (begin_ns, end_ns) in self.read_lanes():
            yield self._event(_FIRST_READ + lane, Slice("read", begin_ns, end_ns))

    def _event(self, lane: int, one: Slice) -> dict[str, Any]:
        begin_us = (one.begin_ns - self.begin_ns) / 1000
        duration_us = (one.end_ns - one.begin_ns) / 1000
        return {
            "name": one.name,
            "ph": "X",
            "pid": 1,
            "tid": lane,
            "ts": round(begin_us, 3),
            "dur": round(duration_us, 3),
        }

    def read_lanes(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Each read with a lane in which none overlaps another: (lane, (begin, end))."""
        free: list[int] = []
        busy: list[tuple[int, int]] = []  # end, lane
        for begin_ns, end_ns in self.reads[np.argsort(self.reads[:, 0], kind="stable")].tolist():
            while busy and busy[0][0] <= begin_ns:
                heapq.heappush(free, heapq.heappop(busy)[1])
            lane = heapq.heappop(free) if free else len(busy)
            heapq.heappush(busy, (end_ns, lane))
            yield lane, (begin_ns, end_ns)
