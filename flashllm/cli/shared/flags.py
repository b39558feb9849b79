"""Options that several commands share, as flags; `flashllm.settings` has their other sources."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flashllm.errors import FlashllmError, UsageError
from flashllm.settings.options import (
    ANSWER_OPTIONS,
    CHAT_OPTIONS,
    MODEL,
    MODEL_OPTIONS,
    SESSION_OPTIONS,
    Option,
)
from flashllm.settings.values import (
    parse_count,
    parse_flag,
    parse_ids,
    parse_number,
    parse_positive,
    parse_share,
    parse_size,
)

__all__ = [
    "ANSWER_OPTIONS", "CHAT_OPTIONS", "MODEL_OPTIONS", "SESSION_OPTIONS", "Option", "add_model",
    "add_options", "argument", "parse_count", "parse_flag", "parse_ids", "parse_number",
    "parse_positive", "parse_share", "parse_size", "resolve_later", "resolve_options",
]  # fmt: skip

_Value = TypeVar("_Value")


def argument(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """The same parser, whose errors argparse reports together with the flag."""

    def parsed(text: str) -> _Value:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the model argument; the demo by default."""
    text = f"{MODEL.help} [{MODEL.variable}]"
    parser.add_argument(MODEL.name, nargs="?", metavar=MODEL.metavar, help=text)
    resolve_later(parser, (MODEL,))


def add_options(parser: argparse.ArgumentParser, title: str, options: tuple[Option, ...]) -> None:
    """Adds a group of options, each with the name of its environment variable."""
    group = parser.add_argument_group(title)
    for option in options:
        if not option.flags:
            continue
        keywords: dict[str, Any] = {"dest": option.name, "default": None}
        if option.is_flag:
            keywords["action"] = "store_true"
        else:
            keywords |= {"type": argument(option.parse), "metavar": option.metavar}
            keywords |= {"choices": option.choices} if option.choices else {}
        group.add_argument(*option.flags, help=f"{option.help} [{option.variable}]", **keywords)
    resolve_later(parser, options)


def resolve_later(parser: argparse.ArgumentParser, options: tuple[Option, ...]) -> None:
    """Has the options filled in from their other sources, flags or not."""
    parser.set_defaults(resolvable=(*(parser.get_default("resolvable") or ()), *options))


def resolve_options(
    arguments: argparse.Namespace,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> None:
    """Fills in options that the command line does not set; all are in `arguments.settings` too.

    A command without such options reads no settings, so it works even if they are invalid; one
    that is `tolerant` leaves out those that are.
    """
    options: tuple[Option, ...] = getattr(arguments, "resolvable", None) or ()
    if not options:
        return
    from flashllm.settings.resolve import load_settings

    given = {option.name: getattr(arguments, option.name, None) for option in options}
    problems: list[FlashllmError] | None = [] if getattr(arguments, "tolerant", False) else None
    arguments.settings = load_settings(environment, file, problems).with_flags(given)
    for option in options:
        setattr(arguments, option.name, arguments.settings.value(option.name))
