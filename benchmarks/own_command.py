"""Commands of flashllm, each in a process of its own, for benchmarks that compare their reports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from flashllm.errors import EXIT_INTERRUPTED, FlashllmError
from flashllm.untrusted.terminal import sanitize_line


class CommandError(FlashllmError):
    """A command that was asked for a report ended with an error."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def ask(*arguments: str) -> dict[str, Any]:
    """The JSON that `flashllm ARGUMENTS` prints; otherwise `CommandError` with its last line."""
    return ask_module("flashllm", *arguments)


def ask_module(module: str, *arguments: str) -> dict[str, Any]:
    """The same for `python -m MODULE ARGUMENTS`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(said.removeprefix("flashllm: "), done.returncode)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as problem:
        shown = " ".join([module, *arguments])
        raise CommandError(f"`{shown}` printed no JSON ({problem})", 1) from problem
    return found


def remark(name: str, text: str) -> None:
    """One line on standard error."""
    print(f"{name}: {sanitize_line(text)}", file=sys.stderr, flush=True)


def ended(name: str, main: Callable[[], int]) -> int:
    """The exit code of `main`; errors of ours become a sentence."""
    try:
        return main()
    except FlashllmError as error:
        remark(name, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        remark(name, "interrupted before there was anything to report")
        return EXIT_INTERRUPTED
