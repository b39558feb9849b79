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
    # What the scripts ask for, while somebody types.
    parser.add_argument("--sessions", action="store_true", help=argparse.SUPPRESS)


def completion(arguments: argparse.Namespace) -> int:
    """Prints the script of a shell; returns the exit code."""
    if arguments.sessions:
        return _sessions()
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


def _sessions() -> int:
    """Prints ids and names of conversations, behind each a tab and what it is."""
    from flashllm import paths
    from flashllm.commands.output import Output
    from flashllm.sanitize import sanitize_line
    from flashllm.sessions import SessionStore

    if not paths.database_file().exists():
        return 0
    with SessionStore() as store:
        summaries = store.list()
    lines = [f"{one.id}\t{sanitize_line(one.name or one.preview)}\n" for one in summaries]
    names = [(sanitize_line(one.name), one.id) for one in summaries if one.name]
    lines += [f"{name}\tconversation {number}\n" for name, number in names]
    Output().write("".join(lines))
    return 0
