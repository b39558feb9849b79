"""`flashllm completion`: a script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

SHELLS = ("bash", "zsh", "fish")
COMPLETION_EXAMPLES = """\
examples:
  eval "$(flashllm completion bash)"            in ~/.bashrc
  source <(flashllm completion zsh)             in ~/.zshrc, after compinit
  flashllm completion fish > ~/.config/fish/completions/flashllm.fish
"""


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def completion(arguments: argparse.Namespace) -> int:
    """Prints the script of a shell; returns the exit code."""
    # These need the parser, which needs this module's arguments.
    from flashllm.commands import completion_bash, completion_fish, completion_zsh
    from flashllm.commands.completion_words import Entry, describe
    from flashllm.commands.output import Output
    from flashllm.commands.parser import DEFAULT_COMMAND, build_parser

    writers: dict[str, Callable[[list[Entry], str], str]] = {
        "bash": completion_bash.script,
        "zsh": completion_zsh.script,
        "fish": completion_fish.script,
    }
    entries = describe(build_parser(), DEFAULT_COMMAND)
    Output().write(writers[arguments.shell](entries, DEFAULT_COMMAND))
    return 0
