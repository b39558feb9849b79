"""Names of models while one is being typed: looked up on a thread, since a disk may be slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

FRESH_SECONDS = 5.0
"""For how long names count as those that are there."""


class FreshNames:
    """The names that were there last; asking for them has them looked up again.

    `look_up` may take its time, `run` runs a coroutine beside everything else, and `renewed` is
    called when the names are others.
    """

    def __init__(
        self,
        look_up: Callable[[], Sequence[str]],
        run: Callable[[Coroutine[Any, Any, None]], object],
        renewed: Callable[[], None],
    ) -> None:
        self._look_up = look_up
        self._run = run
        self._renewed = renewed
        self._names: Sequence[str] = ()
        self._fresh_until = 0.0
        self._is_looking = False

    def latest(self) -> Sequence[str]:
        """The names as far as they are known now."""
        if not self._is_looking and time.monotonic() >= self._fresh_until:
            self._is_looking = True
            self._run(self._look())
        return self._names

    async def _look(self) -> None:
        before = self._names
        try:
            self._names = await asyncio.to_thread(self._look_up)
        finally:
            self._is_looking = False
            self._fresh_until = time.monotonic() + FRESH_SECONDS
        if self._names != before:
            self._renewed()
