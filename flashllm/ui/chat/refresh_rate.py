"""How often more of an answer is shown: as often as is worth looking at, and not too dear."""

from __future__ import annotations

import time

SECONDS_LEAST = 0.03
SECONDS_MOST = 0.3
SHARE = 0.06
"""Of the time of one core, that showing an answer may take: decoding wants the cores itself."""
TYPING_SECONDS = 0.4
"""For so long after a key somebody is typing, and text is best shown right behind a key's echo.

The next key is a tenth of a second away then; at any other time it might have to wait.
"""
BETWEEN_KEYS_SECONDS = 0.1
"""Nor oftener than this, however fast the keys come."""


class RefreshRate:
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

    def fits_behind_key(self) -> bool:
        """Whether a key that is echoed now is the time to show text."""
        return time.monotonic() - self._shown_at >= BETWEEN_KEYS_SECONDS

    def wait_seconds(self) -> float:
        """From now until text should be shown the next time."""
        spent = max(time.thread_time() - self._computed, self._cost / 2)
        interval = min(max(spent / SHARE, SECONDS_LEAST), SECONDS_MOST)
        if self.seconds_since_typed() < TYPING_SECONDS:
            interval = SECONDS_MOST
        return max(self._shown_at + interval - time.monotonic(), 0.001)
