"""The user's own editor, for what is typed into the prompt."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flashllm.errors import UsageError
from flashllm.untrusted.terminal import sanitize

TEXT_BYTES_MAX = 4 << 20


def editor_command(wanted: str = "") -> list[str]:
    """The setting's, $VISUAL's, $EDITOR's, or vi."""
    words = wanted or os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"the editor {words!r} cannot be run: {error}") from None
    return command or ["vi"]


def edited(text: str, wanted: str = "") -> str:
    """What the editor made of `text`, harmless; `UsageError` if it cannot be run, or failed.

    The terminal must be the editor's meanwhile.
    """
    command = editor_command(wanted)
    file = _written(text)
    try:
        try:
            with _interrupts_are_for_the_editor():
                code = subprocess.run([*command, str(file)], check=False).returncode
        except (OSError, ValueError) as error:  # ValueError: a null character in the setting
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(
                f"the editor {command[0]!r} cannot be run: {why}; set $EDITOR"
            ) from None
        if code:
            raise UsageError(f"the editor {command[0]!r} ended with code {code}; nothing changed")
        return _read(file)
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


@contextlib.contextmanager
def _interrupts_are_for_the_editor() -> Iterator[None]:
    """Ctrl+C reaches this process too, and would end the chat behind a line editor."""
    # A handler, as what is ignored here would be ignored by the editor.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _written(text: str) -> Path:
    """A new file with what was typed, for its user alone."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="flashllm-", suffix=".md")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise UsageError(
            f"no file for the editor can be written: {error.strerror}; set $TMPDIR"
        ) from None
    return Path(name)


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > TEXT_BYTES_MAX:
            raise UsageError(f"the edited text is longer than {TEXT_BYTES_MAX >> 20} MiB")
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"the edited text cannot be read: {error.strerror}") from None
    return sanitize(text).rstrip("\n")
