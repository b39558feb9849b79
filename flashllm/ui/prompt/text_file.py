"""A text file of the user's, for a message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from flashllm.errors import UsageError
from flashllm.units import format_bytes
from flashllm.untrusted.terminal import sanitize, sanitize_line

BYTES_MAX = 1 << 20
"""No context holds so much text; a file that is longer was not meant."""
_FENCE = "```"


def read_text_file(typed: str) -> tuple[str, str]:
    """Its name, and its text as it goes into a message; `~` and quotes around it are understood.

    `UsageError` for what is no file, too large, or no text.
    """
    path = Path(os.path.expanduser(_unquoted(typed.strip())))
    shown = sanitize_line(str(path))
    try:
        raw = _read(path, shown)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = error.strerror if isinstance(error, OSError) else "that is no name of a file"
        raise UsageError(f"/file: {shown}: {why}") from None
    name = sanitize_line(path.name)
    return name, _in_message(name, _decoded(raw, shown))


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _read(path: Path, shown: str) -> bytes:
    # A pipe without a writer would be waited for, for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"/file: {shown}: is a directory; name a file in it")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"/file: {shown}: is no regular file")
        with open(descriptor, "rb", closefd=False) as file:
            raw = file.read(BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(raw) > BYTES_MAX:
        raise UsageError(
            f"/file: {shown}: has {format_bytes(status.st_size)}, and at most "
            f"{format_bytes(BYTES_MAX)} go into a message; copy what matters into another file"
        )
    return raw


def _decoded(raw: bytes, shown: str) -> str:
    if b"\0" in raw:
        raise UsageError(f"/file: {shown}: is a binary file (byte {raw.index(0)} is zero)")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"/file: {shown}: is no text in UTF-8 (byte {error.start}); convert it, with `iconv` "
            "for example"
        ) from None
    return sanitize(text.replace("\r\n", "\n").replace("\r", "\n"))


def _in_message(name: str, text: str) -> str:
    """The text below its name, between fences that do not occur in it."""
    fence = _FENCE
    while fence in text:
        fence += "`"
    return f"{name}:\n{fence}\n{text.rstrip(chr(10))}\n{fence}\n"
