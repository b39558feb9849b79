"""`flashllm completion`: a script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from flashllm.cli.completion import bash, fish, zsh
from flashllm.cli.completion.words import Entry, describe
from flashllm.cli.shared.output import Output


def completion(arguments: argparse.Namespace) -> int:
    """Prints the script of a shell; returns the exit code."""
    if arguments.models or arguments.checkpoints:
        return _models(arguments)
    if arguments.sessions:
        return _sessions()
    writers: dict[str, Callable[[list[Entry], str], str]] = {
        "bash": bash.script,
        "zsh": zsh.script,
        "fish": fish.script,
    }
    default = arguments.default_command
    entries = describe(arguments.build_parser(), default)
    Output().write(writers[arguments.shell](entries, default))
    return 0


def _models(arguments: argparse.Namespace) -> int:
    """Prints the names of models and of checkpoints, whichever is asked for."""
    from flashllm.library.formatting import clean
    from flashllm.library.hf_repository import cached_names
    from flashllm.library.names import usual_names

    names = usual_names().names() if arguments.models else []
    names += map(clean, cached_names()) if arguments.checkpoints else []
    Output().write("".join(f"{name}\n" for name in names))
    return 0


def _sessions() -> int:
    """Prints ids and names of conversations, behind each a tab and what it is."""
    from flashllm.conversations.store import SessionStore
    from flashllm.system import paths
    from flashllm.untrusted.terminal import sanitize_line

    if not paths.database_file().exists():
        return 0
    with SessionStore() as store:
        summaries = store.list()
    lines = [f"{one.id}\t{sanitize_line(one.name or one.preview)}\n" for one in summaries]
    names = [(sanitize_line(one.name), one.id) for one in summaries if one.name]
    lines += [f"{name}\tconversation {number}\n" for name, number in names]
    Output().write("".join(lines))
    return 0
