"""An application whose crashes go into the log, and that can always be left.

However it ends, the terminal is then as it was at the start.
"""

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
from typing import TYPE_CHECKING, Any

from textual.app import App, ScreenStackError

from flashllm.errors import EXIT_INTERRUPTED
from flashllm.ui.terminal.hang_exit import HangExit
from flashllm.ui.terminal.modes import TerminalModes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.driver import Driver

CLOSE_SECONDS = 2.0
LEAVE_SECONDS = 20.0
"""After this, leaving takes no longer: whatever it waits for, a terminal or a disk, hangs."""
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

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.terminal = TerminalModes()
        self._hang_exit = HangExit(self._ask_for_sign, self._leave_hanging)

    def _fatal_error(self) -> None:
        # Textual's own would print the traceback, with every local variable, over the terminal.
        self.broke_off = self._exception
        _LOG.critical("the chat broke off", exc_info=self._exception)
        self._close_messages_no_wait()

    def _build_driver(
        self, headless: bool, inline: bool, mouse: bool, size: tuple[int, int] | None
    ) -> Driver:
        if headless:
            return super()._build_driver(headless, inline, mouse, size)
        from flashllm.ui.terminal.drivers import FullScreenDriver, InlineDriver

        kind = InlineDriver if inline else FullScreenDriver
        self._driver = driver = kind(self, self.terminal, self._hang_exit, mouse=mouse)
        return driver

    def exit(
        self,
        result: None = None,
        return_code: int = 0,
        message: RenderableType | None = None,
    ) -> None:
        """Leaves; where something hangs meanwhile, all the same after a while."""
        super().exit(result, return_code, message)
        if self._driver is not None and not self.is_headless:
            self._leave_later(LEAVE_SECONDS, return_code)

    def suspend_to_shell(self) -> bool:
        """Gives the terminal to the shell until `fg`; False where there is no shell to go to."""
        driver = self._driver
        if driver is None or not driver.can_suspend or os.getsid(os.getppid()) != os.getsid(0):
            return False
        from flashllm.ui.terminal.drivers import RestoringDriver

        assert isinstance(driver, RestoringDriver)
        driver.suspend()
        return True

    def leave_at_once(self, code: int, why: str = "") -> None:
        """Ends the process, whatever its threads do; called by any of them."""
        self.terminal.restore()
        self.save_at_once()
        if why:
            self.terminal.write(f"flashllm: {why}\n")
        os._exit(code)

    def save_at_once(self) -> None:
        """Saves what is left to be saved, in little time; called by any thread."""

    def _leave_later(self, seconds: float, code: int) -> None:
        last_resort = threading.Timer(seconds, self.leave_at_once, [code])
        last_resort.daemon = True
        last_resort.start()

    def _ask_for_sign(self) -> None:
        """Has the queues through which keys go confirm that they are worked on."""

        def ask_screen() -> None:
            with contextlib.suppress(ScreenStackError):  # it is left already
                self.screen.call_later(self._hang_exit.answered)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.call_later, ask_screen)

    def _leave_hanging(self) -> None:
        _LOG.critical("the chat did not answer to keys; it was left by force")
        self.leave_at_once(EXIT_INTERRUPTED, "the chat did not answer; left by force")

    def leave_on_signals(self) -> None:
        """SIGINT (Ctrl+C sends none here), SIGTERM and SIGHUP leave as Ctrl+Q does, unasked.

        The last one comes where a terminal vanishes that controls this process; of another one it
        is found out here.
        """
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()

        def leave(number: int, _frame: FrameType | None) -> None:
            self.terminal.is_leaving = True
            with contextlib.suppress(RuntimeError):  # it is left already, and being saved
                loop.call_soon_threadsafe(self.exit, None, 128 + number)
            # A terminal that has gone takes no more output, and writing to it may wait for ever.
            self._leave_later(2 * CLOSE_SECONDS, 128 + number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, leave)
        self.set_interval(TERMINAL_SECONDS, _hang_up_without_terminal)


def _hang_up_without_terminal() -> None:
    # Its end would be read again and again, by a thread of Textual's that never rests.
    watched = select.poll()
    watched.register(sys.__stdin__.fileno() if sys.__stdin__ is not None else 0, 0)
    if any(mask & select.POLLHUP for _, mask in watched.poll(0)):
        signal.raise_signal(signal.SIGHUP)
