"""The log: a file of bounded size, for finding out what went wrong.

Events and errors are logged, never questions or answers. Each line is sanitized, since logs are
shown on terminals; access tokens are removed, wherever they come from.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from flashllm.untrusted.terminal import sanitize

LOGGER = logging.getLogger("flashllm")
SIZE_MAX_BYTES = 1 << 20
OLD_FILES = 3
SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_SECRET = re.compile(
    r"hf_[A-Za-z0-9]{16,}|(?<=://)[^/\s@]+@|(?i:(?<=bearer )|(?<=token=)|(?<=authorization: ))\S+"
)


class SafeFormatter(logging.Formatter):
    """Removes escape sequences and secrets; indents continuation lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        text = without_secrets(sanitize(super().format(record)))
        return text.replace("\n", "\n    ")


class QuietFile(RotatingFileHandler):
    """Readable by its owner only; a full disk is not reported on stderr, the chat's screen."""

    def _open(self) -> TextIOWrapper:
        os.close(os.open(self.baseFilename, _FLAGS, 0o600))
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the base's name
        """Drops a record that could not be written."""


def start_log(path: Path) -> None:
    """Appends to a file from now on, readable by its owner only; None logs nothing.

    If called again, continues in another file.
    """
    handler: logging.Handler
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = QuietFile(
            path, maxBytes=SIZE_MAX_BYTES, backupCount=OLD_FILES, encoding="utf-8",
            errors="backslashreplace",
        )  # fmt: skip
    except OSError:  # a log is never worth a chat
        handler = logging.NullHandler()
    handler.setFormatter(
        SafeFormatter("%(asctime)s %(process)d %(levelname)s %(threadName)s: %(message)s")
    )
    stop_log()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def stop_log() -> None:
    """Closes the file."""
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        with contextlib.suppress(OSError):  # what was left to write found no room either
            handler.close()


def without_secrets(text: str) -> str:
    """The text with access tokens, and passwords in URLs, replaced."""
    for name in SECRET_VARIABLES:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return _SECRET.sub("***", text)
