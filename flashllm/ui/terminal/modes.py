"""The terminal's modes at the start: kept apart from Textual's own record, and restored last.

Textual takes the attributes that it finds whenever it begins to draw for those of the start. After
SIGSTOP and SIGCONT these are the raw ones that it had set itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import threading
from typing import IO, Any

Attributes = list[Any]
"""What `termios.tcgetattr` returns."""

OUTPUT_SECONDS = 0.5
"""A terminal that has gone, or that nobody reads from, takes no output: no end waits for longer."""
MOUSE_OFF = "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
_INPUT_OFF = f"\x1b[?2026l\x1b[?2048l\x1b[?2004l\x1b[?1004l{MOUSE_OFF}\x1b[<u"
"""Synchronised output, reports of the size, bracketed paste, focus, mouse, the kitty protocol."""
_SHOWN = "\x1b[0m\x1b[?7h\x1b[?25h"
"""No colours, long lines wrap, the cursor is shown."""
LEAVE_FULL_SCREEN = f"{_INPUT_OFF}\x1b[?1049l{_SHOWN}"
LEAVE_INLINE = f"{_INPUT_OFF}\x1b[J{_SHOWN}"


class TerminalModes:
    """The attributes of a terminal as they were when this was made, and how to restore them."""

    def __init__(self, input_descriptor: int | None = None, output: int | None = None) -> None:
        """By default of standard input, and for output standard error, as Textual has them."""
        self.input = _descriptor(sys.__stdin__, 0) if input_descriptor is None else input_descriptor
        self._output = _descriptor(sys.__stderr__, 2) if output is None else output
        self.at_start: Attributes | None = _attributes(self.input)
        """None where standard input is no terminal."""
        self.leave_sequence = ""
        """What ends the mode of drawing; empty while nothing is drawn."""
        self.is_leaving = False
        """Whether the application was told to end: then nothing stops it any more."""

    def now(self) -> Attributes | None:
        """The attributes that the terminal has at this moment."""
        return _attributes(self.input)

    def set_attributes(self, attributes: Attributes | None) -> None:
        """Gives the terminal these attributes; does nothing where it has gone."""
        if attributes is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self.input, termios.TCSANOW, attributes)

    def is_ours(self) -> bool:
        """Whether the terminal is not, at this moment, a shell's that put this process aside."""
        try:
            return os.tcgetpgrp(self.input) == os.getpgrp()
        except OSError:  # it is not the terminal that controls this process
            return True

    def restore(self) -> None:
        """Restores the attributes; and the screen, where what drew on it did not.

        May be called by any thread, and again. A shell's terminal is left as it is.
        """
        if not self.is_ours():
            return
        self.set_attributes(self.at_start)
        sequence, self.leave_sequence = self.leave_sequence, ""
        if sequence:
            self.write(sequence)

    def write(self, text: str) -> None:
        """Writes to the terminal, past all buffers; gives up after half a second."""
        writer = threading.Thread(target=self._write, args=[text.encode()], daemon=True)
        writer.start()
        writer.join(OUTPUT_SECONDS)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._output, data) :]


def _descriptor(stream: IO[str] | None, usual: int) -> int:
    try:
        return usual if stream is None else stream.fileno()
    except (OSError, ValueError):  # closed, or no file
        return usual


def _attributes(descriptor: int) -> Attributes | None:
    try:
        return termios.tcgetattr(descriptor)
    except (termios.error, OSError):
        return None
