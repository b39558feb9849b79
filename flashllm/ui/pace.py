"""How often more of an answer is shown: as often as is worth looking at, and not too dear."""

from __future__ import annotations

import time

SECONDS_LEAST = 0.03
SECONDS_MOST = 0.3
SHARE = 0.06
"""Of the time of one core, that showing an answer may take: decoding wants the cores itself."""
TYPING_SECONDS = 0.4
"""For so long after a key somebody is typing."""
TYPING_SECONDS_MOST = 0.15
"""While somebody types, text comes in smaller parts: a key waits for one of them at most."""


class Pace:
    """Measures what this thread computed since text was shown last, keys and layout included."""

    def __init__(self) -> None:
        self._shown_at = 0.0
        self._computed = 0.0
        self._cost = 0.0
        self._typed_at = 0.0

    def typed(self) -> None:
        """A key was pressed."""
        self._typed_at = time.monotonic()

    def seconds_since_typed(self) -> float:
        """Since a key was pressed."""
        return time.monotonic() - self._typed_at

    def shown(self) -> None:
        """Text has just been given to the screen; what it costs is seen the next time."""
        computed = time.thread_time()
        self._cost = computed - self._computed
        self._shown_at, self._computed = time.monotonic(), computed

    def wait_seconds(self) -> float:
        """From now until text should be shown the next time."""
        spent = max(time.thread_time() - self._computed, self._cost / 2)
        typing = self.seconds_since_typed() < TYPING_SECONDS
        most = TYPING_SECONDS_MOST if typing else SECONDS_MOST
        interval = min(max(spent / SHARE, SECONDS_LEAST), most)
        return max(self._shown_at + interval - time.monotonic(), 0.001)
