"""When rows come into a block: how many of its free places are filled before the next step."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

Schedule = Literal["continuous", "zigzag", "diagonal"]
"""Rows take the places of those that finish; or a block is answered to its end before the next one
begins; or rows begin one after another, so that answers of all lengths are under way at once."""
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
DEFAULT_SCHEDULE: Schedule = "continuous"
ROUNDS_OF_PLACES = 8
"""Where prompts are readings of their own, new rows come into a block an eighth of its places at a
time: waiting for more leaves places empty, and for fewer a layer is read more often."""


class Admission(Protocol):
    """Decides before each step of a block."""

    goes_beside: bool
    """Whether rows that are going get their next tokens while prompts of others are read."""

    def rows(self, free: int, going: int) -> int:
        """How many rows may begin, with so many places free and so many rows going."""


class Continuous:
    """Rows that finish give their places to the next ones, some at a time."""

    goes_beside = True

    def __init__(self, places: int, *, waits: bool = True) -> None:
        """`places` of the block; `waits` for an eighth of them to be free, or fills each at once.

        At once is better where a step of the block reads layers whole and prompts go beside it.
        """
        self._waited_for = max(places // ROUNDS_OF_PLACES, 1) if waits else 1

    def rows(self, free: int, going: int) -> int:
        """All free places, once there are enough of them."""
        return free if free >= self._waited_for or not going else 0


class ZigZag:
    """A block to its end, then the next one: FlexGen's schedule (arXiv 2303.06865, section 4.1)."""

    goes_beside = False

    def rows(self, free: int, going: int) -> int:
        """All places, once all are free."""
        return 0 if going else free


class Diagonal:
    """Rows begin evenly over the steps of an answer, so that one ends whenever one begins.

    Keys and values of the block then take what they take on average, not what all answers take at
    their ends: 2 (s + n) / (2 s + n) times as many rows of s and n tokens fit into the same memory.
    Source: FlexGen's diagonal block schedule (arXiv 2303.06865, appendix A.2), which was proved
    better there and not built.
    """

    goes_beside = True

    def __init__(self, places: int, steps: int) -> None:
        """`places` of the block, and the `steps` that an answer takes."""
        self._places, self._steps = places, max(steps, 1)
        self._step = 0
        self._begun = 0

    def rows(self, free: int, going: int) -> int:
        """As many as are due by now, at least one where none is going."""
        due = self._places * (self._step + 1) // self._steps
        self._step += 1
        count = free if self._step > self._steps else min(max(due - self._begun, 0), free)
        count = max(count, 0 if going else 1)
        self._begun += count
        return count


def admission_of(schedule: Schedule, places: int, steps: int, *, waits: bool = True) -> Admission:
    """The admission of a schedule to a block of so many places; answers take some `steps`.

    `waits` is for `Continuous`.
    """
    if schedule == "zigzag":
        return ZigZag()
    if schedule == "diagonal":
        return Diagonal(places, steps)
    return Continuous(places, waits=waits)
