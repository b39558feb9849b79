"""Which conversation `chat` and `run` continue, and with which model."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from flashllm.errors import UsageError
from flashllm.library.directories import name_of
from flashllm.settings.options import SESSION_OPTIONS
from flashllm.system.demos import DEMO_NAME, DEMO_NAMES

if TYPE_CHECKING:
    from flashllm.conversations.records import SessionSummary


def ignore_named_conversation(arguments: argparse.Namespace) -> None:
    """Ignores a conversation that only a variable names, since a flag asks for something else."""
    for option in SESSION_OPTIONS:
        if arguments.settings.origin(option.name) == "env":
            setattr(arguments, option.name, option.default)


def asked_session(arguments: argparse.Namespace) -> tuple[str, bool]:
    """(name of the conversation, whether the latest is meant); a flag wins over a variable."""
    origin = arguments.settings.origin
    name, latest = arguments.session, getattr(arguments, "continue")
    if name and latest:
        if origin("session") == origin("continue"):
            raise UsageError("--continue and --session are two conversations; give one")
        if origin("session") == "flag":
            return name, False
        return "", True
    return name, latest


def chosen_session(arguments: argparse.Namespace) -> SessionSummary | None:
    """The conversation that the arguments name; None for a new one.

    `--continue` begins one if there is none yet. Raises `SessionNotFound`, and the errors of a
    store that cannot be read.
    """
    if arguments.no_save and arguments.settings.origin("no_save") == "flag":
        ignore_named_conversation(arguments)
    name, latest = asked_session(arguments)
    if not (name or latest):
        return None
    if arguments.no_save:
        raise UsageError("--no-save keeps nothing, so there is nothing to continue; leave it out")
    from flashllm.conversations.store import SessionStore

    with SessionStore() as store:
        chosen = store.find(name) if name else store.latest()
        return None if chosen is None else store.summary(chosen)


def model_of(arguments: argparse.Namespace, session: SessionSummary | None) -> str | None:
    """The model as it is typed, or its path: from the command line, else the conversation's.

    None is the demo, of today's version; a conversation's model that no longer exists is left out.
    """
    asked: str | None = arguments.model
    if session is None or not session.model or arguments.settings.origin("model") == "flag":
        return asked
    if (name := name_of(session.model)) in DEMO_NAMES:
        return None if name == DEMO_NAME else name
    return session.model if os.path.isdir(session.model) else asked  # False for what is no path
