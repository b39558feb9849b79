"""The words of the command line, read from its parser, for shell completion."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_DIRECTORY_WORDS = frozenset(("DIR", "DST"))
_FILE_WORDS = frozenset(("FILE", "IN", "OUT", "PATH"))
_MODEL_WORD = "MODEL"
_SOURCE_WORD = "SRC"

_SESSION_WORD = "ID"
_THEME_WORD = "THEME"
THEMES = (
    "ansi-dark", "ansi-light", "atom-one-dark", "atom-one-light", "catppuccin-frappe",
    "catppuccin-latte", "catppuccin-macchiato", "catppuccin-mocha", "dracula", "flexoki",
    "gruvbox", "monokai", "nord", "rose-pine", "rose-pine-dawn", "rose-pine-moon",
    "solarized-dark", "solarized-light", "textual-dark", "textual-light", "tokyo-night",
)  # fmt: skip
"""Textual's themes; Textual takes too long to load in a shell that starts."""

Places = Literal[
    "", "files", "directories", "sessions", "models", "checkpoints", "sources", "model_files"
]
"""Models and checkpoints are directories and names, sources both of them."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an option or of a positional argument."""

    name: str
    choices: tuple[str, ...] = ()
    places: Places = ""
    """What to complete it with at run time."""
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """One option, in all of its spellings."""

    spellings: tuple[str, ...]
    help: str
    value: Value | None
    """None for an option that stands alone."""
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One command, or the program itself."""

    words: tuple[str, ...]
    """The words typed to reach it, without the program: ("bench", "io")."""
    commands: tuple[tuple[str, str], ...]
    """Names of the commands below, and what each does."""
    flags: tuple[Flag, ...]
    values: tuple[Value, ...]
    """Positional arguments, in order."""

    @property
    def path(self) -> str:
        """The words, with spaces between."""
        return " ".join(self.words)

    @property
    def spellings(self) -> list[str]:
        """Of all options."""
        return [spelling for flag in self.flags for spelling in flag.spellings]


def describe(parser: argparse.ArgumentParser, default: str) -> list[Entry]:
    """The program and all of its commands; the program takes what the command `default` takes."""
    entries = list(_entries(parser, ()))
    program, first = entries[0], next(entry for entry in entries if entry.words == (default,))
    known = set(program.spellings)
    flags = [flag for flag in first.flags if not known & set(flag.spellings)]
    entries[0] = Entry((), program.commands, (*program.flags, *flags), ())
    return entries


def _entries(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Entry]:
    commands: list[tuple[str, str]] = []
    below: list[Entry] = []
    flags, values = [], []
    for action in parser._actions:  # noqa: SLF001  argparse says it nowhere else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            commands = [
                (choice.dest, _plain(choice.help))
                for choice in action._choices_actions  # noqa: SLF001
            ]
            for name, command in action.choices.items():
                below += _entries(command, (*words, name))
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            takes = _value(action) if action.nargs != 0 else None
            repeats = isinstance(action, argparse._AppendAction)  # noqa: SLF001
            flags.append(Flag(tuple(action.option_strings), _plain(action.help), takes, repeats))
        else:
            values.append(_value(action))
    yield Entry(words, tuple(commands), tuple(flags), tuple(values))
    yield from below


def _value(action: argparse.Action) -> Value:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    parts = metavar.split("|")
    choices = tuple(map(str, action.choices or [part for part in parts if part.islower()]))
    if _THEME_WORD in parts:
        choices = THEMES
    places: Places = ""
    if _SESSION_WORD in parts:
        places = "sessions"
    elif _SOURCE_WORD in parts:
        places = "sources" if _MODEL_WORD in parts else "checkpoints"
    elif _MODEL_WORD in parts:
        places = "model_files" if _FILE_WORDS & set(parts) else "models"
    elif _FILE_WORDS & set(parts):
        places = "files"
    elif _DIRECTORY_WORDS & set(parts):
        places = "directories"
    elif action.type is Path:
        places = "files"
    return Value(metavar, choices, places, action.nargs in ("*", "+"))


def _plain(text: str | None) -> str:
    return " ".join((text or "").replace("%%", "%").split())
