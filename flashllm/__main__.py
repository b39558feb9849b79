"""What `flashllm`, `python -m flashllm` and `python app.py` start."""

from __future__ import annotations

import os
import sys

from flashllm.system import malloc


def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the arguments name (of this process by default); its exit code.

    Before the chat, the process may start anew (`malloc.restart_without_thread_caches`): so this is
    for a process of the command line alone.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if _opens_chat(given) and os.isatty(0):
        malloc.restart_without_thread_caches()
    from flashllm.cli.main import main as run_command  # after that: 40 ms that would be spent twice

    return run_command(given)


def _opens_chat(arguments: list[str]) -> bool:
    """Whether the arguments are the chat's, or its options without a command."""
    return not arguments or arguments[0] == "chat" or arguments[0].startswith("-")


if __name__ == "__main__":
    sys.exit(main())
