"""Textual's drivers for terminals, made safe against SIGSTOP, SIGTSTP and SIGCONT.

Textual begins to draw anew at each SIGCONT: another thread reads keys besides the first, which may
never end, and the raw attributes are taken for those of the start. Its handlers also write while
the code that they interrupt may hold the lock of what they write to. Here a handler sets attributes
and leaves the rest to the event loop, and what is running already is not started again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual import constants, events
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.linux_inline_driver import LinuxInlineDriver

from flashllm.ui.terminal.modes import LEAVE_FULL_SCREEN, LEAVE_INLINE, MOUSE_OFF

if TYPE_CHECKING:
    from textual.app import App
    from textual.message import Message

    from flashllm.ui.terminal.hang_exit import HangExit
    from flashllm.ui.terminal.modes import Attributes, TerminalModes

LEAVING_KEYS = ("ctrl+c", "ctrl+q")
_MOUSE_ON = "\x1b[?1000h\x1b[?1003h\x1b[?1015h\x1b[?1006h"
_INPUT_ON = f"\x1b[?1004h\x1b[?2004h{_MOUSE_ON}\x1b[?25l"
_KITTY_FULL_SCREEN, _KITTY_INLINE = "\x1b[<u\x1b[>25u", "\x1b[<u\x1b[>1u"
"""Textual's own flags; what it pushed before is popped, so that one pop at the end is enough."""


class RestoringDriver(Driver):
    """What both drivers have in common."""

    attrs_before: Attributes | None
    _enter_sequence: str
    _leave_sequence: str

    def __init__(
        self, app: App[Any], modes: TerminalModes, hang_exit: HangExit, *, mouse: bool
    ) -> None:
        self._modes = modes
        self._hang_exit = hang_exit
        self._raw: Attributes | None = None
        """The attributes while something is drawn; None while nothing is."""
        self._is_suspended = False
        super().__init__(app, mouse=mouse)
        # Bound names of Textual's, but its driver for inline use has no handlers at all.
        signal.signal(signal.SIGTSTP, self._sigtstp_application)
        signal.signal(signal.SIGCONT, self._sigcont_application)

    def start_application_mode(self) -> None:
        """Begins to draw, with the attributes of the start as those to come back to."""
        self._modes.leave_sequence = self._leave_sequence
        super().start_application_mode()  # type: ignore[safe-super]
        self.attrs_before = self._modes.at_start
        self._raw = self._modes.now()

    def stop_application_mode(self) -> None:
        """Ends drawing. A terminal that a shell has by now keeps its attributes."""
        self._raw = None
        self.attrs_before = self._modes.at_start if self._modes.is_ours() else None
        self.write(MOUSE_OFF)  # Textual forgets that it asked for pixels
        super().stop_application_mode()  # type: ignore[safe-super]

    def process_message(self, message: Message) -> None:
        """Passes a key on; called by the thread that reads them."""
        if isinstance(message, events.Key) and message.key in LEAVING_KEYS:
            self._hang_exit.pressed()
        super().process_message(message)

    # Signals: a handler interrupts any code, so it takes no lock and writes nothing.

    def _sigtstp_application(self, *_: object) -> None:
        """Stops this process, once the terminal is as it was at the start."""
        if self._auto_restart and self._raw is not None:
            self._call(self._suspend)
        else:  # an editor has the terminal, or the application ends
            os.kill(os.getpid(), signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        """Draws again after a stop; a terminal that is a shell's waits for `fg`."""
        if not self._auto_restart:
            return
        is_ours = self._modes.is_ours()
        if self._modes.is_leaving:
            if not is_ours:  # a shell's `kill` of a stopped job: touching its terminal stops again
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            return
        if not is_ours:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        self._modes.set_attributes(self._raw)
        self._call(self._go_on)

    def _call(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _suspend(self) -> None:
        self.suspend(os.getpid())

    def suspend(self, stopped: int = 0) -> None:
        """Gives the terminal back, then stops a process, or all of this process's group for 0.

        A script that started this one is stopped too, but not before: its shell would take the
        terminal at once, and to touch it stops whoever does not have it.
        """
        if self._raw is not None:
            self._is_suspended = True
            self.suspend_application_mode()
            os.kill(stopped, signal.SIGSTOP)

    def _go_on(self) -> None:
        if self._is_suspended:
            self._is_suspended = False
            self.resume_application_mode()
        elif self._raw is not None:
            self._modes.set_attributes(self._raw)
            self.write(self._enter_sequence)
            self.flush()
        self._app.refresh(layout=True)


class FullScreenDriver(RestoringDriver, LinuxDriver):
    """On the terminal's other screen."""

    _enter_sequence = (
        f"\x1b[?1049h{_INPUT_ON}\x1b[?7l{'' if constants.DISABLE_KITTY_KEY else _KITTY_FULL_SCREEN}"
    )
    _leave_sequence = LEAVE_FULL_SCREEN

    def close(self) -> None:
        """Waits until all is written."""
        super().close()
        if self._raw is None:
            self._modes.leave_sequence = ""


class InlineDriver(RestoringDriver, LinuxInlineDriver):
    """Below the shell's prompt."""

    _enter_sequence = f"{_INPUT_ON}{_KITTY_INLINE}"
    _leave_sequence = LEAVE_INLINE

    def stop_application_mode(self) -> None:
        """Ends drawing; what was written is on the terminal then."""
        super().stop_application_mode()
        self._modes.leave_sequence = ""
