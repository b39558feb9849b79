"""What was computed and read at which moment: a Gantt chart, for Chrome's and Perfetto's viewers.

The format is Chrome's: a complete event (`X`) has a beginning and a duration in microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import CannotCreate
from flashllm.system.atomic_file import replacing
from flashllm.system.clock import PartClock
from flashllm.system.noted_times import TimedTransfers

EVENTS_MAX = 1 << 19
"""Parts of steps that are kept; later ones are not."""
_COMPUTE, _STEPS, _FIRST_READ = 1, 2, 10  # lanes


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took its time."""

    name: str
    begin_ns: int
    end_ns: int


class StepTrace:
    """Records steps of a model while it is on; a context manager."""

    def __init__(
        self,
        clock: PartClock,
        reader: TimedTransfers,
        others: Mapping[str, TimedTransfers] | None = None,
    ) -> None:
        """`reader` is that of weights; `others` transfer something else, by its name."""
        self.parts: list[Slice] = []
        """One after the other."""
        self.steps: list[Slice] = []
        """Prompts and tokens that were measured."""
        self.reads: NDArray[np.int64] = np.empty((0, 2), np.int64)
        """Beginning and end of each, in ns of the same clock; known at the end."""
        self.transfers: dict[str, NDArray[np.int64]] = {}
        """The same by name: `read` of weights, and others."""
        self._clock, self._readers = clock, {"read": reader, **(others or {})}

    def __enter__(self) -> StepTrace:
        self._clock.on_stop = self._note
        for reader in self._readers.values():
            reader.keep_read_times(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.on_stop = None
        for name, reader in self._readers.items():
            self.transfers[name] = reader.take_read_times().reshape(-1, 2)
            reader.keep_read_times(False)
        self.reads = self.transfers["read"]

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
        for name, first, lanes in self._transfer_lanes():
            names |= {first + lane: f"{name} {lane + 1}" for lane in range(lanes)}
        for lane, name in names.items():
            yield {"name": "thread_name", "ph": "M", "pid": 1, "tid": lane, "args": {"name": name}}

    def _events(self) -> Iterator[dict[str, Any]]:
        for lane, slices in ((_STEPS, self.steps), (_COMPUTE, self.parts)):
            for one in slices:
                yield self._event(lane, one)
        for name, first, _ in self._transfer_lanes():
            for lane, (begin_ns, end_ns) in lanes_of(self.transfers[name]):
                yield self._event(first + lane, Slice(name, begin_ns, end_ns))

    def _transfer_lanes(self) -> Iterator[tuple[str, int, int]]:
        """Of each kind of transfer: its first lane, and how many it has."""
        first = _FIRST_READ
        for name, times in self.transfers.items():
            lanes = max((lane for lane, _ in lanes_of(times)), default=-1) + 1
            yield name, first, lanes
            first += lanes

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


def lanes_of(times: NDArray[np.int64]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Each of `times` [n, 2] with a lane in which none overlaps another: (lane, (begin, end))."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # end, lane
    for begin_ns, end_ns in times[np.argsort(times[:, 0], kind="stable")].tolist():
        while busy and busy[0][0] <= begin_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end_ns, lane))
        yield lane, (begin_ns, end_ns)
