"""When transfers began and ended, noted where that is asked for."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TIMES_MAX = 1 << 18


class TimedTransfers(Protocol):
    """What notes when its transfers begin and end, as the reader of the core does."""

    def keep_read_times(self, keep: bool, /) -> None:
        """From now on, or no longer."""

    def take_read_times(self) -> NDArray[np.int64]:
        """Beginning and end of each, in ns of `system.clock.now_ns`."""


class NotedTimes:
    """Transfers of something other than the core's reader; from any thread."""

    def __init__(self) -> None:
        self._is_kept = False
        self._times: list[tuple[int, int]] = []

    def note(self, begin_ns: int, end_ns: int) -> None:
        """One began and ended, by `system.clock.now_ns`."""
        if self._is_kept and len(self._times) < TIMES_MAX:
            self._times.append((begin_ns, end_ns))

    def keep_read_times(self, keep: bool) -> None:
        """From now on note them, or no longer."""
        self._is_kept = keep

    def take_read_times(self) -> NDArray[np.int64]:
        """Beginning and end of each, in ns, which are forgotten with that."""
        taken, self._times = self._times, []
        return np.array(taken, np.int64).reshape(-1)
