"""Questions before something is lost."""

from __future__ import annotations

import argparse
import sys

from flashllm.errors import UsageError
from flashllm.untrusted.terminal import sanitize_line


def agreed(question: str) -> bool:
    """Whether the user says yes; `UsageError` without a terminal to ask on."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on; --yes goes on without asking")
    print(f"{sanitize_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Adds `--yes`, which answers the question."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
