"""The command line: reads arguments, starts one command, turns errors into messages and exit codes.

Imports nothing heavy: `flashllm --help` shows in an instant, and each command brings what it needs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from flashllm.cli.parser import DEFAULT_COMMAND, build_parser, command_names
from flashllm.cli.shared.flags import resolve_options
from flashllm.cli.shared.output import remark
from flashllm.errors import (
    EXIT_INTERRUPTED,
    FlashllmError,
    MemoryCeilingTooSmall,
    ReadFailed,
    UsageError,
)
from flashllm.untrusted.terminal import sanitize

EXIT_BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name; returns its exit code."""
    if sys.stderr is None:  # closed before the start: remarks would go to standard output
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        parsed = parse(sys.argv[1:] if arguments is None else list(arguments))
        for text in parsed.settings.remarks if hasattr(parsed, "settings") else ():
            remark(text)
        module, _, function = parsed.handler.partition(":")
        handler: Callable[[argparse.Namespace], int] = getattr(
            importlib.import_module(module), function
        )
        code = handler(parsed)
        if sys.stdout is not None:  # closed before the start
            sys.stdout.flush()
    except FlashllmError as error:
        return fail(error)
    except BrokenPipeError:
        # What reads our output has gone; nothing more can be said there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:  # a path that cannot be looked at, a disk that fails
        return fail(ReadFailed(_words_of(error)))
    except MemoryError:
        return fail(MemoryCeilingTooSmall("out of memory; give --memory, or close programs", 0))
    except KeyboardInterrupt:
        print("flashllm: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


def fail(error: FlashllmError) -> int:
    """Tells of an error on standard error; returns its exit code."""
    print(f"flashllm: {sanitize(str(error))}", file=sys.stderr)
    return error.exit_code


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments of one command, options filled in; `UsageError` for what makes no sense."""
    arguments = _with_command(arguments)
    parsed = build_parser(only=arguments[0]).parse_args(arguments)
    resolve_options(parsed)
    return parsed


def _with_command(arguments: list[str]) -> list[str]:
    """The arguments, the command first; `UsageError` where the first word is none."""
    first = arguments[0] if arguments else ""
    if first == "help":
        return [*(word for word in arguments[1:] if not word.startswith("-")), "--help"]
    if not first or (first.startswith("-") and first not in ("-h", "--help", "--version")):
        return [DEFAULT_COMMAND, *arguments]
    if not first.startswith("-") and first not in command_names():
        from flashllm.cli.shared.unknown_command import format_unknown_command

        raise UsageError(format_unknown_command(first, command_names()))
    return arguments


def _words_of(error: OSError) -> str:
    words = error.strerror or str(error) or type(error).__name__
    return words if error.filename is None else f"{error.filename}: {words}"
