"""The prompt of `flashllm run`: from `-p`, from standard input, or both."""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys
from typing import TYPE_CHECKING

from flashllm.commands.output import remark
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.template import Message
    from flashllm.tokenizer import Tokenizer

STDIN_BYTES_MAX = 16 << 20
PIPE_WAIT_SECONDS = 3.0
"""With `-p TEXT`, a pipe that says nothing for so long is taken for one that nobody feeds."""


def read_prompt(arguments: argparse.Namespace) -> str:
    """The prompt's text; what comes by standard input goes before what `-p` says."""
    text: str | None = arguments.prompt
    if text == "-":
        return _not_empty(_read_stdin())
    piped = _read_stdin() if _has_piped_stdin(wait=text is not None) else ""
    if text is None and not piped:
        raise UsageError('there is no prompt; give -p "TEXT", or pipe text in')
    return _not_empty("\n\n".join(part for part in (piped, text or "") if part))


def encode_prompt(
    tokenizer: Tokenizer | None, text: str, arguments: argparse.Namespace
) -> list[int]:
    """Ids of the prompt, in the model's chat template where it has one and `--raw` is not given."""
    if tokenizer is None:
        raise UsageError("this model came without a tokenizer; give the prompt as ids: --ids 1,2,3")
    if arguments.raw and arguments.system:
        raise UsageError("--system needs a chat template, which --raw turns off")
    if not _is_chat(tokenizer, arguments):
        return tokenizer.encode(text)
    messages: list[Message] = [{"role": "user", "content": text}]
    if arguments.system:
        messages.insert(0, {"role": "system", "content": arguments.system})
    return tokenizer.encode_chat(messages)


def answer_stops(tokenizer: Tokenizer | None, arguments: argparse.Namespace) -> tuple[str, ...]:
    """Strings that end the answer: those asked for, and in a conversation the template's own."""
    asked = tuple(arguments.stop)
    if tokenizer is None or arguments.ids is not None or not _is_chat(tokenizer, arguments):
        return asked
    return asked + tokenizer.chat_stops


def _is_chat(tokenizer: Tokenizer, arguments: argparse.Namespace) -> bool:
    return not arguments.raw and bool(tokenizer.has_chat_template or arguments.system)


def _not_empty(text: str) -> str:
    if not text.strip():
        raise UsageError("the prompt is empty; say something")
    return text


def _has_piped_stdin(wait: bool) -> bool:
    """Whether standard input is a file or a pipe with something in it.

    Where a program runs without a terminal, its standard input often is a pipe that stays open
    and empty for ever, so with a prompt at hand one waits for it only so long.
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
    content = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(content) > STDIN_BYTES_MAX:
        raise UsageError(f"standard input is longer than {STDIN_BYTES_MAX >> 20} MiB")
    return content.decode("utf-8", "replace").rstrip("\r\n")
