"""The prompt of `flashllm run`: from standard input, from a file, from `-p`, in this order."""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from flashllm.cli.shared.output import remark
from flashllm.cli.shared.prompt_flags import check_prompt_flags
from flashllm.engine.answer import answers_messages
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine

TEXT_BYTES_MAX = 16 << 20
PIPE_WAIT_SECONDS = 3.0
"""With `-p TEXT`, a pipe that is silent for this long is taken to be unused."""


def read_prompt(arguments: argparse.Namespace) -> str:
    """The prompt's text: standard input or `-f`, then `-p`.

    Empty only if a conversation is continued without a prompt: then its last answer continues.
    """
    text, file = arguments.prompt, arguments.file
    asks_for_stdin = "-" in (text, file)
    parts = []
    if asks_for_stdin or _has_piped_stdin(wait=text is not None or file is not None):
        parts.append(_read_stdin())
    if file not in (None, "-"):
        parts.append(_read_file(Path(file)))
    if text not in (None, "-"):
        parts.append(text)
    if not parts or (text is None and file is None and not parts[0]):
        if wants_continuing(arguments):
            return ""
        raise UsageError(
            'there is no prompt; give it as words, `flashllm run MODEL "TEXT"`, with -f FILE, or'
            " pipe text in; `flashllm chat` is a conversation"
        )
    return _not_empty("\n\n".join(part for part in parts if part))


def is_chat(model: Engine, arguments: argparse.Namespace) -> bool:
    """Whether the prompt is a message to be answered, by `answers_messages`; ids are none."""
    return answers_messages(
        model,
        raw=arguments.raw or arguments.ids is not None,
        is_conversation=bool(arguments.system) or wants_saving(arguments),
    )


def wants_saving(arguments: argparse.Namespace) -> bool:
    """Whether the exchange belongs to a saved conversation."""
    return bool(arguments.save) or wants_continuing(arguments)


def wants_continuing(arguments: argparse.Namespace) -> bool:
    """Whether the exchange continues an existing conversation."""
    return bool(arguments.session or getattr(arguments, "continue"))


def check_prompt(arguments: argparse.Namespace) -> None:
    """`UsageError` for flags that contradict each other."""
    if arguments.ids is not None and (arguments.prompt, arguments.file) != (None, None):
        raise UsageError("--ids and -p or -f are two prompts; give one")
    if arguments.ids is not None and not arguments.ids:
        raise UsageError("--ids is empty; give at least one token id")
    check_prompt_flags(arguments)
    if (arguments.raw or arguments.ids is not None) and wants_saving(arguments):
        raise UsageError(
            "--continue, --session and --save are for conversations; --raw and --ids are none"
        )


def _not_empty(text: str) -> str:
    if not text.strip():
        raise UsageError("the prompt is empty; give it some text")
    return text


def _has_piped_stdin(wait: bool) -> bool:
    """Whether standard input is a file or a pipe with something in it.

    Without a terminal, standard input often is a pipe that stays open and empty for ever, so if
    there is another prompt, waiting for it is limited.
    """
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or replaced by something else
        return False
    if stat.S_ISREG(mode):
        return True
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    if wait and not select.select([descriptor], [], [], PIPE_WAIT_SECONDS)[0]:
        remark("nothing on standard input; going on without it (`-p -` would wait)")
        return False
    return True


def _read_stdin() -> str:
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("standard input is closed; give the prompt with -p")
    return _read_text(sys.stdin.buffer, "standard input")


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return _read_text(stream, str(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _read_text(stream: BinaryIO, name: str) -> str:
    content = stream.read(TEXT_BYTES_MAX + 1)
    if len(content) > TEXT_BYTES_MAX:
        raise UsageError(f"{name} is longer than {TEXT_BYTES_MAX >> 20} MiB")
    return content.decode("utf-8", "replace").rstrip("\r\n")
