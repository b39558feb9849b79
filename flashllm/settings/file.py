"""Reads the user's config.toml; every error names the line, the key and what is allowed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashllm.errors import ConfigError, FlashllmError, UsageError
from flashllm.settings.nearest import nearest
from flashllm.settings.options import OPTIONS, Option

KEYS_TABLE = "keys"
SIZE_MAX_BYTES = 1 << 20
INTEGER_BITS_MAX = 128
"""More than any setting takes. Python does not print numbers of thousands of digits."""
DEPTH_MAX = 32
"""Tables in tables; keys with dots nest without brackets that the parser would count."""


@dataclass(frozen=True, slots=True)
class Said:
    """The value of an option or key binding, and where the file sets it."""

    value: Any
    place: str
    """`FILE:LINE`, for people."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of config.toml; empty if there is no file."""

    path: Path
    values: Mapping[str, Said] = field(default_factory=dict)
    """By the name of the option."""
    keys: Mapping[str, Said] = field(default_factory=dict)
    """Keys of the chat, by the name of their action."""


def read_config(path: Path, problems: list[FlashllmError] | None = None) -> ConfigFile:
    """Reads a file; `ConfigError` for anything invalid.

    With `problems`, errors are put there, and what they are about is left out.
    """
    values: dict[str, Said] = {}
    keys: dict[str, Said] = {}
    with collected(problems):
        text = _read_text(path)
        if not text:
            return ConfigFile(path)  # the parser takes 2 ms to import
        content = _parse(path, text)
        options = {option.key: option for option in OPTIONS if option.in_file}
        for key, value in _flatten(content, {option.table for option in options.values()}):
            line = _line_of(text, key)
            place = f"{path}:{line}" if line else str(path)
            with collected(problems):
                _take(place, key, value, options, values, keys)
    return ConfigFile(path, values, keys)


@contextlib.contextmanager
def collected(problems: list[FlashllmError] | None) -> Iterator[None]:
    """Context manager that adds an error of ours to `problems`, or raises it where that is None."""
    try:
        yield
    except FlashllmError as error:
        if problems is None:
            raise
        problems.append(error)


def _take(
    place: str,
    key: str,
    value: Any,
    options: Mapping[str, Option],
    values: dict[str, Said],
    keys: dict[str, Said],
) -> None:
    """Adds one line's value to `values` or to `keys`."""
    table, _, name = key.partition(".")
    if table == KEYS_TABLE and name:
        keys[name] = Said(_text_of_key(place, key, value), place)
    elif key in options:
        values[options[key].name] = Said(_value(place, options[key], value), place)
    else:
        raise ConfigError(f"{place}: there is no setting {key!r}; {_nearest(key, options)}")


def _read_text(path: Path) -> str | None:
    try:
        if path.is_file() and path.stat().st_size > SIZE_MAX_BYTES:
            raise ConfigError(f"{path}: is longer than {SIZE_MAX_BYTES >> 20} MiB")
        return path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (at byte {error.start})") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        content: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError itself: a number is too long
        raise ConfigError(
            f"{path}: is not TOML: {error}; `flashllm config edit` opens it"
        ) from error
    _check_size(path, content)
    return content


def _check_size(path: Path, content: dict[str, Any]) -> None:
    """Refuses what is valid TOML and would fail where an error shows it."""
    depth = 0
    values: list[Any] = [content]
    while values:
        if depth > DEPTH_MAX:
            raise ConfigError(f"{path}: has more than {DEPTH_MAX} tables in each other")
        if any(isinstance(v, int) and v.bit_length() > INTEGER_BITS_MAX for v in values):
            raise ConfigError(f"{path}: has a number of more than {INTEGER_BITS_MAX} bits")
        values = [inner for value in values for inner in _inner(value)]
        depth += 1


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _flatten(content: Mapping[str, Any], tables: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Keys with the names of their tables, and values; unknown tables stay values."""
    for key, value in content.items():
        if isinstance(value, dict) and key in tables:
            for name, inner in value.items():
                yield f"{key}.{name}", inner
        elif isinstance(value, dict) and key == KEYS_TABLE:
            yield from ((f"{key}.{name}", inner) for name, inner in _leaves(value))
        else:
            yield key, value


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`chat.stop = ...` without quotes makes a nested table; flattens it."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _text_of_key(place: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f'{place}: {key}: expected keys in quotes, like "ctrl+x" or "f5,ctrl+o"')
    return value


def _value(place: str, option: Option, value: Any) -> Any:
    try:
        return option.parse(_text_of(option, value))
    except UsageError as error:
        raise ConfigError(f"{place}: {option.key}: {error}") from error


def _text_of(option: Option, value: Any) -> str:
    """The value as text for the option's parser; `UsageError` for a value of the wrong type."""
    if option.is_flag:
        if isinstance(value, bool):
            return "true" if value else "false"
        raise UsageError(f"{value!r} is neither true nor false (without quotes)")
    if option.is_list:
        folders = [value] if isinstance(value, str) else value
        if isinstance(folders, list) and all(isinstance(folder, str) for folder in folders):
            return os.pathsep.join(folders)
        raise UsageError(f'{value!r} is no list of folders; write it like ["~/models", "/data"]')
    if isinstance(value, str):
        return value
    if option.is_number and isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    expected = f"expected one of {', '.join(option.choices)}" if option.choices else ""
    raise UsageError(
        f"{value!r} is not {'a number' if option.is_number else 'text in quotes'}"
        + (f"; {expected}" if expected else "")
    )


def _nearest(key: str, options: Mapping[str, Option]) -> str:
    names = {option.name: known for known, option in options.items()}
    table, _, last = key.rpartition(".")
    close = [names[last]] if last in names else nearest(key, options)
    close = close or [names[name] for name in nearest(last, names)]
    if not close:
        return "`flashllm config show` lists them"
    known = options[close[0]]
    where = f" (in the table [{known.table}])" if known.table else " (above all tables)"
    return f"did you mean {known.name!r}{where if known.table != table else ''}?"


def _line_of(text: str, key: str) -> int | None:
    """The line where a key is set, counted from 1; None if it is not found."""
    table, _, name = key.partition(".")
    if not name:
        table, name = "", key
    here, names = "", "|".join(re.escape(form) for form in (name, f'"{name}"', f"'{name}'"))
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]*?)\s*\]", line):
            here = header[1].strip("\"'")
        here_matches = here == table and re.match(rf"\s*(?:{names})\s*=", line)
        if here_matches or (not table and re.match(rf"\s*\[+\s*(?:{names})\b", line)):
            return number
        if (
            table
            and not here
            and re.match(rf"\s*{re.escape(table)}\s*(?:\.\s*(?:{names})\s*)?=", line)
        ):
            return number
    return None
