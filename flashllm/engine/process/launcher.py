"""From a choice of a model to an engine in a process of its own.

Both processes share one ceiling: the application keeps what it uses now and may grow by, and the
engine plans with the rest.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import TYPE_CHECKING, Unpack

from flashllm.engine.process import messages as messages
from flashllm.engine.process.supervisor import OnLost, OnWarming, WorkerSupervisor, error_of
from flashllm.options import ModelOptions, ModelOverrides
from flashllm.system import malloc
from flashllm.system.memory import rss_bytes

if TYPE_CHECKING:
    from flashllm.engine.process.client import EngineClient
    from flashllm.engine.process.memory_watch import OnReleased
    from flashllm.engine.protocol import OnOpening

GROWTH_BYTES = 80 << 20
"""How much the application may grow, within the ceiling: 5,000 tokens of Markdown take 60 MB."""
LEAST_GROWTH_BYTES = 32 << 20
"""How much it may grow at least where a model is opened later, when most that is kept is there."""
_REMOTE = "flashllm.engine.process.client"


class EngineLauncher:
    """Opens models, each in a process of its own, which starts when it is asked for.

    Started earlier, it would load its libraries while the application starts: the first frame needs
    both of two processors, and came a tenth later.
    """

    def __init__(self, options: ModelOptions, opener: str) -> None:
        """`opener` is the module:function that `WorkerSupervisor` calls in the child."""
        self._options = options
        self._opener = opener
        self._opening: WorkerSupervisor | None = None
        self._lock = threading.Lock()

    def open(
        self,
        path: str | None,
        on_opening: OnOpening | None = None,
        on_lost: OnLost | None = None,
        on_released: OnReleased = lambda _: None,
        on_warming: OnWarming | None = None,
        **overrides: Unpack[ModelOverrides],
    ) -> EngineClient:
        """Opens the model at `path`, or the demo for None, with this launcher's options.

        `overrides` take precedence over these.
        `on_lost` gets the `EngineLost` of an engine that ends later without being closed;
        `on_released` the bytes of slots that it gave back so that both stay below the ceiling;
        `on_warming` the share of the model that it has read ahead while nothing was asked.
        Raises what `local.open_model` raises, and `EngineLost`.
        """
        with self._lock:
            process = self._opening = WorkerSupervisor(self._opener)
        if on_warming is not None:
            process.watch_warming(on_warming)
        try:
            options = self._options.having(**overrides)
            engine = open_in(process, path, options, on_opening)
        finally:
            self._opening = None
        if on_lost is not None:
            process.watch(on_lost)
        if "application" in engine.plan.split:
            engine.watch_memory(on_released)
        return engine

    def close(self) -> None:
        """Ends a process that has no model yet; a caller waiting for it gets an `EngineLost`."""
        with self._lock:
            process = self._opening
        if process is not None:
            process.close()


def open_in(
    process: WorkerSupervisor,
    path: str | None,
    options: ModelOptions,
    on_opening: OnOpening | None = None,
) -> EngineClient:
    """Opens a model in a process that has none; `options.memory` is the ceiling of both.

    Raises what `local.open_model` raises, and `EngineLost`; the process is ended then.
    """
    try:
        while not isinstance(message := process.next_opening_message(), messages.Opened):
            if isinstance(message, messages.Ready):
                own = options.having(application_bytes=application_bytes())
                process.send(messages.Open(path, own))
            elif isinstance(message, messages.Opening):
                if on_opening is not None:
                    on_opening(message.progress)
            else:
                raise error_of(message)
        engine: EngineClient = importlib.import_module(_REMOTE).EngineClient(process, message)
    except BaseException:
        process.close()
        raise
    return engine


def application_bytes() -> int:
    """The part of a ceiling that is left to this process: what it uses now, and may grow by.

    What it grew by since a model was first opened was in its part already, so that a model
    that was open before fits again, after a lost engine for instance.
    """
    # Modules that read the engine's numbers are loaded now, so that their memory is measured; not
    # earlier, when the application is busy with its first frame.
    importlib.import_module(_REMOTE)
    malloc.keep_heap_flat()  # looking through models takes 20 MiB, in another thread each time
    return max(_first_part_bytes(), rss_bytes() + LEAST_GROWTH_BYTES)


@functools.cache
def _first_part_bytes() -> int:
    return rss_bytes() + GROWTH_BYTES
