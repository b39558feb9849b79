"""Runs the chat from its settings to its exit code, and says afterwards what was saved.

However it ends, no traceback reaches the terminal: an error is one line there, and the traceback
goes into the log.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from textual.theme import BUILTIN_THEMES

from flashllm.errors import ConfigError, UsageError
from flashllm.system.interned_names import settle_table_of_names
from flashllm.ui.base_app import CLOSE_SECONDS
from flashllm.ui.commands.bindings import PLACES
from flashllm.ui.commands.keys import read_keymap
from flashllm.ui.widgets import themes
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.settings.resolve import Settings
    from flashllm.ui.app import ChatApp

_LOG = logging.getLogger("flashllm")
CONVERSION_SECONDS = 3.0
"""For a conversion to remove what it wrote; one that is killed leaves that to the next."""
FULL_COLLECTION_EVERY = 1000
"""Of the younger collections. A full one looks at all widgets there are, for which keys would wait;
`Answering` has one when nobody does. It does not look at what is loaded before the first frame."""


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
    settle_table_of_names()
    try:
        with _rarely_collecting_all():
            app.run(inline=inline, inline_no_clear=inline)
    finally:
        app.terminal.restore()
    return _close(app, log_file)


def _close(app: ChatApp, log_file: Path | None) -> int:
    """Saves what is left and closes the engine; returns the exit code."""
    code, chat = app.return_code or 0, app.chat
    if chat.answering.turn is not None:  # what came of it since it was saved last
        chat.saving.turn(chat.conversation, chat.answering.turn)
    saved = chat.saving.close(CLOSE_SECONDS)
    chat.quick_profile.close()
    if chat.begun_conversions is not None:
        chat.begun_conversions.close(CONVERSION_SECONDS)
    closed = chat.engine.close(CLOSE_SECONDS)
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
    gc.freeze()  # modules, mostly: they stay, and looking through them takes a tenth of a second
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _say_where(app: ChatApp, saved: bool, log_file: Path | None) -> None:
    from flashllm.ui.chat.answering import explain

    lines = []
    if app.broke_off is not None:
        lines.append(f"the chat broke off: {explain(app.broke_off)}")
    if not saved:
        lines.append("what was said last could not be saved")
    session_id = app.chat.session_id
    if session_id is not None:
        lines.append(
            f"session {session_id} is kept; `flashllm chat --session {session_id}` goes on"
        )
    if log_file is not None:
        lines.append(f"log: {log_file}")
    with contextlib.suppress(OSError):  # the terminal has gone
        for line in lines:
            print(f"flashllm: {sanitize_line(line)}", file=sys.stderr, flush=True)


def _log_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _LOG.critical("a thread broke off", exc_info=arguments.exc_value)
