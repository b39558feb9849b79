"""A way out for when the application takes no keys: it is found by the thread that reads them."""

from __future__ import annotations

import time
from collections.abc import Callable

PRESSES = 3
HANG_SECONDS = 2.0
"""An application that answers within this time is slow, and does not hang."""


class HangExit:
    """Calls `leave` when a key for leaving is pressed again and again and nothing answers.

    Each press asks the application for a sign by `ask`, unless it owes one already; `answered` is
    that sign. So no number of presses leaves an application that works.
    """

    def __init__(
        self,
        ask: Callable[[], None],
        leave: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._leave = leave
        self._clock = clock
        self._presses = 0
        self._asked_at: float | None = None

    def pressed(self) -> None:
        """A key for leaving was pressed. Called by the thread that reads keys."""
        now = self._clock()
        if self._asked_at is None:
            self._asked_at, self._presses = now, 1
            self._ask()
            return
        self._presses += 1
        if self._presses >= PRESSES and now - self._asked_at >= HANG_SECONDS:
            self._leave()

    def answered(self) -> None:
        """The application gives the sign: it works."""
        self._asked_at = None
