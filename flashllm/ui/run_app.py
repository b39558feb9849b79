"""Start and end of the application: the terminal is given back, and where things are kept is said.

However it ends, nothing of the interpreter's reaches the terminal: what broke is said in a line,
and the traceback goes into the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from textual.app import App
from textual.theme import BUILTIN_THEMES

from flashllm.errors import ConfigError, UsageError
from flashllm.sanitize import sanitize_line
from flashllm.ui import themes
from flashllm.ui.bindings import PLACES
from flashllm.ui.keys import read_keymap

if TYPE_CHECKING:
    from flashllm.settings import Settings
    from flashllm.ui.app import ChatApp

CLOSE_SECONDS = 2.0
CONVERSION_SECONDS = 3.0
"""For a conversion to remove what it wrote; one that is killed leaves that to the next."""
TERMINAL_SECONDS = 1.0
"""So often is it looked whether the terminal is still there."""
FULL_COLLECTION_EVERY = 1000
"""Of the younger collections. A full one looks at all widgets there are, and takes a tenth of a
second or two, for which keys would wait; `Answering` has one when nobody does."""
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


def look_around(settings: Settings) -> dict[str, str]:
    """The keys of the configuration, once terminal, theme and keys are found to make sense.

    `UsageError` for a terminal on which nothing can be drawn; the rest as `check_settings`.
    """
    if not themes.has_colour():
        os.environ["NO_COLOR"] = "1"
    return check_settings(settings)


def check_settings(settings: Settings) -> dict[str, str]:
    """The keys of the configuration, once theme and keys are found to make sense.

    `ConfigError` for a line of config.toml, `UsageError` for a flag or a variable.
    """
    if settings.chat.theme:
        try:
            themes.find_theme(settings.chat.theme, sorted(BUILTIN_THEMES))
        except UsageError as error:
            kind = ConfigError if settings.origin("theme") == "file" else UsageError
            raise kind(f"{settings.place('theme')}: {error}") from error
    return read_keymap(settings.keys, PLACES)


def run_app(app: ChatApp, *, inline: bool = False, log_file: Path | None = None) -> int:
    """Runs the chat in the terminal, under the prompt if `inline`; returns the exit code."""
    threading.excepthook = _log_thread
    with _rarely_collecting_all():
        app.run(inline=inline, inline_no_clear=inline)
    code = app.return_code or 0
    if app.answering.turn is not None:  # what came of it since it was saved last
        app.saving.turn(app.conversation, app.answering.turn)
    saved = app.saving.close(CLOSE_SECONDS)
    if app.begun_conversions is not None:
        app.begun_conversions.close(CONVERSION_SECONDS)
    closed = app.engine.close(CLOSE_SECONDS)
    _say_where(app, saved, log_file)
    if not closed:
        # Opening, or a read that hangs: nothing that has to be saved is at stake.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    return code


@contextlib.contextmanager
def _rarely_collecting_all() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], FULL_COLLECTION_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _say_where(app: ChatApp, saved: bool, log_file: Path | None) -> None:
    from flashllm.ui.answering import explain

    lines = []
    if app.broke_off is not None:
        lines.append(f"the chat broke off: {explain(app.broke_off)}")
    if not saved:
        lines.append("what was said last could not be saved")
    if app.session_id is not None:
        lines.append(
            f"session {app.session_id} is kept; `flashllm chat --session {app.session_id}` goes on"
        )
    if log_file is not None:
        lines.append(f"log: {log_file}")
    with contextlib.suppress(OSError):  # the terminal has gone
        for line in lines:
            print(f"flashllm: {sanitize_line(line)}", file=sys.stderr, flush=True)


def _log_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _LOG.critical("a thread broke off", exc_info=arguments.exc_value)
