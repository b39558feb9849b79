"""Engine calls on a thread of their own, so that Ctrl-C reaches the main thread while they run."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Generic, Protocol, TypeVar

from flashllm.errors import EXIT_INTERRUPTED, Cancelled

# A signal may reach another thread than the main one, which then has to look up by itself.
POLL_SECONDS = 0.1

_Event = TypeVar("_Event")


class _End:
    """The last item in the queue: the work is over, perhaps with an error."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def raise_error(self) -> None:
        """Raises the error, if there was one, and drops it.

        Its traceback holds the engine's frames, and these hold memory that should be freed before
        the interpreter ends.
        """
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error


class Worker(Generic[_Event]):
    """Runs `work(emit)` on a daemon thread; `events` yields what it emits and raises its error."""

    def __init__(self, work: Callable[[Callable[[_Event], None]], None]) -> None:
        self._queue: queue.SimpleQueue[_Event | _End] = queue.SimpleQueue()
        self._work = work
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def events(self) -> Iterator[_Event]:
        """Starts the work and yields its events as they come."""
        self._thread.start()
        while True:
            try:
                event = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(event, _End):
                self._thread.join()
                event.raise_error()
                return
            yield event

    def join(self, seconds: float) -> None:
        """Waits for the thread, if it is running, for `seconds` at most."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._work(self._queue.put)
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            self._queue.put(_End(error))
        else:
            self._queue.put(_End(None))


class Interruption:
    """The signal that asked a command to stop, once one has."""

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def exit_code(self) -> int:
        """The exit code that a shell reports after that signal."""
        return EXIT_INTERRUPTED if self.number is None else 128 + self.number


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill` and `docker stop`, a closed terminal."""


@contextlib.contextmanager
def on_interrupt(cancel: Callable[[], bool]) -> Iterator[Interruption]:
    """Context manager in which the first of SIGNALS calls `cancel` and the second exits at once.

    `cancel` returns False if there is nothing to cancel yet; then the first one exits. SIGTERM and
    SIGHUP stay ignored where they are, as under nohup.
    """
    interruption = Interruption()

    def handle(number: int, _frame: FrameType | None) -> None:
        first, interruption.number = interruption.number is None, number
        if not (first and cancel()):
            # Threads in native code cannot be ended, and nothing that they hold outlives them.
            with contextlib.suppress(OSError):  # the terminal may be the one that is gone
                os.write(sys.stderr.fileno(), b"\nflashllm: interrupted\n")
            os._exit(interruption.exit_code)

    ignored = [n for n in SIGNALS[1:] if signal.getsignal(n) in (signal.SIG_IGN, None)]
    before = {n: signal.signal(n, handle) for n in SIGNALS if n not in ignored}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


JOIN_SECONDS = 2.0
"""So long a failing command waits for its engine."""


def run_interruptibly(
    work: Callable[[], None], running: RunningModel, clear: Callable[[], None]
) -> Interruption:
    """Does `work` on a thread of its own, until it is over or `running` was stopped by a signal.

    `clear` is called at the end, whatever happened; errors of the work are raised here.
    """
    worker: Worker[None] = Worker(lambda _: work())
    with on_interrupt(running.stop) as interruption:
        try:
            for _ in worker.events():
                pass
        except BaseException:
            running.stop()
            worker.join(JOIN_SECONDS)
            raise
        finally:
            clear()
    return interruption


class Cancellable(Protocol):
    """What computes, and can be told to stop."""

    def cancel(self) -> None: ...  # noqa: D102


class RunningModel:
    """The model that is answering, for the main thread."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._model: Cancellable | None = None
        # Reentrant, since Ctrl-C may come while the main thread holds it already.
        self._lock = threading.RLock()

    @property
    def model(self) -> Cancellable | None:
        """None before it is open, and once it is closing."""
        return self._model

    @model.setter
    def model(self, model: Cancellable | None) -> None:
        with self._lock:
            self._model = model

    def stop(self) -> bool:
        """Ends the answer; False if no model is open."""
        self.is_stopped = True
        with self._lock:
            if self._model is not None:
                self._model.cancel()
            return self._model is not None

    @contextlib.contextmanager
    def ends_when_stopped(self) -> Iterator[None]:
        """Context manager that a stop between two answers ends like one within an answer."""
        try:
            yield
        except Cancelled:
            if not self.is_stopped:
                raise
