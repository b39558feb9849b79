"""An application whose crashes go into the log, and which signals end; the terminal is restored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
import threading
from types import FrameType

from textual.app import App

CLOSE_SECONDS = 2.0
TERMINAL_SECONDS = 1.0
"""So often is it looked whether the terminal is still there."""
_LOG = logging.getLogger("flashllm")


class RestoringApp(App[None]):
    """An application whose crashes go into the log, and that signals can end."""

    DEFAULT_CSS = """
    OptionList:nocolor > .option-list--option-highlighted {
        text-style: reverse;
    }
    Transcript:focus .-selected:nocolor {
        border-left: double $warning;
    }
    """
    broke_off: Exception | None = None
    """What ended it, where that was no wish of the user's."""

    def _fatal_error(self) -> None:
        # Textual's own would print the traceback, with every local variable, over the terminal.
        self.broke_off = self._exception
        _LOG.critical("the chat broke off", exc_info=self._exception)
        self._close_messages_no_wait()

    def leave_on_signals(self) -> None:
        """SIGINT (Ctrl+C sends none here), SIGTERM and SIGHUP leave as Ctrl+Q does, unasked.

        The last one comes where a terminal vanishes that controls this process; of another one it
        is found out here.
        """
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()

        def leave(number: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # it is left already, and being saved
                loop.call_soon_threadsafe(self.exit, None, 128 + number)
            # A terminal that has gone takes no more output, and writing to it may wait for ever.
            last_resort = threading.Timer(2 * CLOSE_SECONDS, os._exit, [128 + number])
            last_resort.daemon = True
            last_resort.start()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, leave)
        self.set_interval(TERMINAL_SECONDS, _hang_up_without_terminal)


def _hang_up_without_terminal() -> None:
    # Its end would be read again and again, by a thread of Textual's that never rests.
    watched = select.poll()
    watched.register(sys.__stdin__.fileno() if sys.__stdin__ is not None else 0, 0)
    if any(mask & select.POLLHUP for _, mask in watched.poll(0)):
        signal.raise_signal(signal.SIGHUP)
