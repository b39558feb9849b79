"""`flashllm config`: shows settings and where they come from, and edits them."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashllm.cli.shared.flags import add_options
from flashllm.cli.shared.output import Output, remark
from flashllm.errors import CannotCreate, ConfigError, UsageError
from flashllm.settings.defaults import default_config, in_force, to_toml
from flashllm.settings.options import (
    ANSWER_OPTIONS,
    CHAT_OPTIONS,
    MODEL,
    MODEL_OPTIONS,
    OPTIONS,
    SESSION_OPTIONS,
    Option,
)
from flashllm.settings.resolve import Settings, load_settings
from flashllm.system import paths
from flashllm.text_table import columns
from flashllm.units import format_bytes
from flashllm.untrusted.terminal import sanitize_line

SHOW_EXAMPLES = """\
examples:
  flashllm config show --origin                 every setting, and what said so
  flashllm config show --origin --temp 0.7      as it would be with this flag
"""
EDIT_EXAMPLES = """\
Opens it in $VISUAL or $EDITOR, and looks afterwards whether all of it makes sense. A file that is
not there is made first, with every setting as a remark.
"""


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `config show`."""
    parser.add_argument("--origin", action="store_true", help="say where each value came from")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_options(parser, "conversation", (MODEL, *SESSION_OPTIONS, *CHAT_OPTIONS))
    add_options(parser, "answers", ANSWER_OPTIONS)
    add_options(parser, "model", MODEL_OPTIONS)


def add_nothing(parser: argparse.ArgumentParser) -> None:
    """A command without arguments."""


def path(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    """Prints where config.toml is; returns the exit code."""
    Output().write(f"{paths.config_file()}\n")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Prints every setting; returns the exit code."""
    settings: Settings = arguments.settings
    output = Output()
    if arguments.json:
        keys = {
            f"keys.{name}": {"value": said.value, "origin": "file", "place": said.place}
            for name, said in settings.keys.items()
        }
        output.json({option.key: _as_json(settings, option) for option in OPTIONS} | keys)
        return 0
    rows = [(option.key, _shown(settings, option)) for option in OPTIONS]
    origins = [_origin(settings, option) for option in OPTIONS]
    rows += [(f"keys.{name}", said.value) for name, said in settings.keys.items()]
    origins += [sanitize_line(f"file {said.place}") for said in settings.keys.values()]
    shown = [[sanitize_line(name), sanitize_line(value)] for name, value in rows]
    if arguments.origin:
        shown = [[*row, origin] for row, origin in zip(shown, origins, strict=True)]
    output.write(columns(shown, left=3))
    return 0


def _shown(settings: Settings, option: Option) -> str:
    value = in_force(option, settings.value(option.name))
    if value is not None:
        return to_toml(option, value)
    now = _NOW[option.name]() if option.name in _NOW else ""
    return f"({now}{option.unset})"


def _editor_now() -> str:
    return f"{os.environ.get('VISUAL') or os.environ.get('EDITOR') or 'vi'}: "


def _memory_now() -> str:
    """The usual ceiling, where the memory of a process before a model is known."""
    from flashllm.library.runtime_memory import kept_bytes
    from flashllm.planning.model_facts import usual_ceiling

    kept = kept_bytes()
    return "" if kept is None else f"{format_bytes(usual_ceiling(kept))} now: "


_NOW: dict[str, Callable[[], str]] = {"editor": _editor_now, "memory": _memory_now}
"""What an option that is not set comes to on this machine at this moment."""


def _as_json(settings: Settings, option: Option) -> dict[str, Any]:
    value = settings.value(option.name)
    return {
        "value": [os.fspath(part) for part in value] if option.is_list else value,
        "in_force": in_force(option, value) if not option.is_list else None,
        "origin": settings.origin(option.name),
        "place": settings.place(option.name),
    }


def _origin(settings: Settings, option: Option) -> str:
    return sanitize_line(f"{settings.origin(option.name)} {settings.place(option.name)}")


def edit(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    """Opens config.toml in the user's editor, and checks it; returns the exit code."""
    file = paths.config_file()
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    if not os.path.exists(file):  # not by Path's, which raises where it cannot be looked at
        _create(file)
        remark(f"made {file}, with every setting as a remark")
    _run_editor(command, file)
    try:
        count = _check(file)
    except ConfigError as error:
        raise ConfigError(f"{error}\n`flashllm config edit` opens it again") from error
    remark(f"{file} is in order: {count} set")
    return 0


def _check(file: Path) -> int:
    """The number of settings in a file; `ConfigError` if one is invalid, also one of the chat."""
    from flashllm.ui.run import check_settings  # with Textual, which knows themes and keys

    settings = load_settings({}, file)
    check_settings(settings)
    values = [name for name in settings.settings if settings.origin(name) == "file"]
    return len(values) + len(settings.keys)


def _create(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(default_config())
    except OSError as error:
        raise CannotCreate(f"{file}: cannot be written: {error.strerror}") from error


def _run_editor(command: str, file: Path) -> None:
    import subprocess  # slow to load, and every command loads this file

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"$VISUAL or $EDITOR is {command!r}: {error}") from error
    if not words:
        raise UsageError(f"set EDITOR, as in `EDITOR=nano flashllm config edit`, or edit {file}")
    try:
        code = subprocess.run([*words, str(file)], check=False).returncode
    except OSError as error:
        raise UsageError(
            f"{words[0]}: cannot be started: {error.strerror}; set EDITOR, or edit {file}"
        ) from error
    if code != 0:
        raise UsageError(f"{command} ended with exit code {code}; {file} was not checked")
