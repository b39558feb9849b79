"""The phases of long work, how far all of it is, and how long it will still take.

Expected times are guesses until the work itself corrects them: the phase that runs goes by its own
speed, later ones by how expected and real times of their kind compared so far.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["moving", "computing"]
"""What a phase waits for. Each kind is faster or slower than expected by a factor of its own."""
ESTIMATE_SECONDS = 1.0
"""A phase's own speed counts after this time."""
FACTOR_MOST = 20.0
_PART = re.compile(r", part (\d+) of (\d+)$")


@dataclass(frozen=True, slots=True)
class ExpectedPhase:
    """A phase that will come."""

    name: str
    """The beginning of the name with which it starts; `, part 2 of 3` may follow."""
    kind: Kind
    seconds: float
    """In all its parts."""
    times: int = 1
    """How often it starts, if its name does not say of how many parts it is."""


class Schedule:
    """Follows the phases of one work; phases that nobody expected count for nothing."""

    def __init__(
        self,
        phases: Sequence[ExpectedPhase] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.phases = tuple(phases)
        self._clock = clock
        self._begin: float | None = None
        self._place = -1
        """The phase that runs, among the expected ones; -1 for none of them."""
        self._done: dict[int, float] = {}
        """By place, the share of all its parts that is done."""
        self._spent: dict[int, float] = {}
        """By place, the seconds of its parts that are over."""
        self._starts: dict[int, int] = {}
        self._first, self._last = 0.0, 1.0
        """The shares of the running phase at which its running part begins and ends."""
        self._part_done, self._part_begin = 0.0, 0.0
        self._done_bytes = self._total_bytes = 0

    def expect(self, phases: Sequence[ExpectedPhase]) -> None:
        """Says what will come, before anything has begun."""
        assert self._begin is None, "what is expected is said before the work"
        self.phases = tuple(phases)

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins; the one before is over."""
        now = self._clock()
        self._end_part(now)
        if self._begin is None:
            self._begin = now
        self._done_bytes, self._total_bytes = 0, max(total_bytes, 1)
        self._part_begin, self._part_done = now, 0.0
        self._place = next(
            (place for place, one in enumerate(self.phases) if phase.startswith(one.name)), -1
        )
        if self._place < 0:
            return
        for before in range(self._place):
            # Parts may alternate: a phase of several is over when its last one was.
            if not _PART.search(phase):
                self._done[before] = 1.0
        self._first, self._last = self._part_of(phase)

    def advance(self, nbytes: int) -> None:
        """`nbytes` more of the running phase are done."""
        self._done_bytes += nbytes
        self._part_done = (
            min(self._done_bytes / self._total_bytes, 1.0) if self._total_bytes else 0.0
        )

    def finish(self) -> None:
        """The running phase is over."""
        self._end_part(self._clock())
        self._place = -1

    @property
    def seconds(self) -> float:
        """Since the first phase began."""
        return 0.0 if self._begin is None else self._clock() - self._begin

    def spent(self, kind: Kind) -> float:
        """Seconds of the phases of a kind, so far."""
        places = [place for place, one in enumerate(self.phases) if one.kind == kind]
        running = self._clock() - self._part_begin if self._place in places else 0.0
        return running + sum(self._spent.get(place, 0.0) for place in places)

    @property
    def share(self) -> float:
        """The share of all expected work that is done, by expected seconds."""
        whole = sum(one.seconds for one in self.phases)
        if whole <= 0:
            return 0.0
        done = sum(one.seconds * self._share(place) for place, one in enumerate(self.phases))
        return min(done / whole, 1.0)

    @property
    def seconds_left(self) -> float | None:
        """Until everything is done; None while nothing has begun or nothing is expected."""
        if self._begin is None or not self.phases:
            return None
        left = 0.0
        for place, one in enumerate(self.phases):
            undone = 1.0 - self._share(place)
            if place == self._place:
                undone -= (self._last - self._first) * (1.0 - self._part_done)
                left += self._part_left(one)
            left += max(undone, 0.0) * one.seconds * self._factor(one.kind)
        return left

    def _part_of(self, phase: str) -> tuple[float, float]:
        """Where the part that starts lies in its phase."""
        if found := _PART.search(phase):
            number, count = int(found[1]), max(int(found[2]), 1)
        else:
            number = self._starts[self._place] = self._starts.get(self._place, 0) + 1
            count = max(self.phases[self._place].times, number)
        self._done[self._place] = (number - 1) / count
        return (number - 1) / count, min(number / count, 1.0)

    def _end_part(self, now: float) -> None:
        if self._place >= 0:
            self._done[self._place] = self._last
            before = self._spent.get(self._place, 0.0)
            self._spent[self._place] = before + now - self._part_begin
        self._part_begin, self._part_done = now, 0.0

    def _share(self, place: int) -> float:
        if place == self._place:
            return self._first + (self._last - self._first) * self._part_done
        return self._done.get(place, 0.0)

    def _part_left(self, phase: ExpectedPhase) -> float:
        """Seconds until the running part ends, by its own speed as soon as it has one."""
        elapsed = self._clock() - self._part_begin
        if self._part_done > 0 and elapsed >= ESTIMATE_SECONDS:
            return elapsed * (1.0 / self._part_done - 1.0)
        part = phase.seconds * (self._last - self._first)
        return part * (1.0 - self._part_done) * self._factor(phase.kind)

    def _factor(self, kind: Kind) -> float:
        """Real over expected seconds of what of a kind is done; 1 while too little is."""
        expected = sum(
            one.seconds * self._share(place)
            for place, one in enumerate(self.phases)
            if one.kind == kind and place in (*self._spent, self._place)
        )
        spent = self.spent(kind)
        if expected <= 0 or spent < ESTIMATE_SECONDS:
            return 1.0
        return min(max(spent / expected, 1.0 / FACTOR_MOST), FACTOR_MOST)
