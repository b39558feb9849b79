"""Keeps both processes below their ceiling while a model is open: the engine gives slots back.

The plan leaves the application what it took when the model was opened, and some to grow by. Where
it takes more than that, or the engine more than its own part, fewer weights stay in memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from flashllm.engine.process import messages as messages
from flashllm.system.memory import rss_bytes
from flashllm.units import MIB, format_bytes

if TYPE_CHECKING:
    from flashllm.engine.process.supervisor import WorkerSupervisor
    from flashllm.planning.plan import Plan

WATCH_SECONDS = 0.5
MARGIN_BYTES = 16 * MIB
"""So much below the ceiling slots are given back: both may grow until that is done."""
STEP_BYTES = 8 * MIB
"""What is given back is so many of these, so that it changes rarely."""
RETURN_STEPS = 4
"""So many steps more than needed are given back before some are taken again."""

OnReleased = Callable[[int], None]
"""Called, from any thread, with the bytes of slots that are given back now, where that changed."""
_log = logging.getLogger("flashllm.engine")


def bytes_to_release(plan: Plan, application: int, engine: int, released: int) -> int:
    """How many bytes of slots should be given back in all, by the resident memory of both.

    `released` of them are given back already. The engine may still grow to all that was planned for
    it, less what was given back; so slots go when the application outgrows its part, not when both
    together are at the ceiling.
    """
    beyond_part = application - plan.split.get("application", plan.ceiling_bytes)
    beyond_ceiling = application + engine + released - plan.ceiling_bytes
    wanted = max(max(beyond_part, beyond_ceiling) + MARGIN_BYTES, 0)
    steps, steps_released = -(-wanted // STEP_BYTES), released // STEP_BYTES
    if steps <= steps_released < steps + RETURN_STEPS:
        return released
    return steps * STEP_BYTES


class MemoryWatch:
    """A thread that looks at both processes until the engine's has gone, or `stop`."""

    def __init__(self, process: WorkerSupervisor, plan: Plan, on_released: OnReleased) -> None:
        self._process = process
        self._plan = plan
        self._on_released = on_released
        self._released = 0
        self._is_asked = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            self._look()

    def _look(self) -> None:
        engine = rss_bytes(self._process.pid)
        wanted = bytes_to_release(self._plan, rss_bytes(), engine, self._released)
        if wanted != self._released and not self._is_asked:
            self._is_asked = True
            self._process.ask(
                lambda number: messages.Call(number, "release_slots", (wanted,)), self._take
            )

    def _take(self, message: object) -> None:
        self._is_asked = False
        if not isinstance(message, messages.Returned):
            self.stop()  # the engine has gone, or cannot do this
        elif message.value != self._released:
            self._released = message.value
            _log.info("slots of %s are given back", format_bytes(self._released))
            self._on_released(self._released)
