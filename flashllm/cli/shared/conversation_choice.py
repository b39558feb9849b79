"""Which conversation `chat` and `run` go on with, and which model that is had with."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from flashllm.errors import UsageError
from flashllm.settings.options import SESSION_OPTIONS

if TYPE_CHECKING:
    from flashllm.conversations.records import SessionSummary


def ignore_named_conversation(arguments: argparse.Namespace) -> None:
    """Leaves out the conversation that a variable alone names: a flag asks for something else."""
    for option in SESSION_OPTIONS:
        if arguments.settings.origin(option.name) == "env":
            setattr(arguments, option.name, option.default)


def asked_session(arguments: argparse.Namespace) -> tuple[str, bool]:
    """The conversation that is named, and whether the latest is meant; a flag beats a variable."""
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

    `--continue` where there is none yet begins one. `SessionNotFound`, and the errors of a store
    that cannot be read.
    """
    if arguments.no_save and arguments.settings.origin("no_save") == "flag":
        ignore_named_conversation(arguments)
    name, latest = asked_session(arguments)
    if not (name or latest):
        return None
    if arguments.no_save:
        raise UsageError("--no-save keeps nothing, so there is nothing to go on with; leave it out")
    from flashllm.conversations.store import SessionStore

    with SessionStore() as store:
        chosen = store.find(name) if name else store.latest()
        return None if chosen is None else store.summary(chosen)


def model_of(arguments: argparse.Namespace, session: SessionSummary | None) -> str | None:
    """Path of the model: what the command line says, else the conversation's, while it is there."""
    asked: str | None = arguments.model
    if session is None or not session.model or arguments.settings.origin("model") == "flag":
        return asked
    return session.model if os.path.isdir(session.model) else asked  # False for what is no path
