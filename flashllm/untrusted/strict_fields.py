"""Frozen dataclasses as plain JSON values and back, every field checked against its annotation.

Supported are str, bool, int, float, dataclasses, `tuple[X, ...]`, `dict[str, X]`, `dict[int, X]`
and `X | None`. Fields that a constructor does not take are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")
ITEMS_MAX = 100_000
FLOAT_INTEGER_MAX = 1 << 1000
"""Whole numbers up to this become floats; beyond some larger one Python would refuse."""


def to_plain(value: Any) -> Any:
    """A dataclass, recursively, as dicts, lists, strings and numbers."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[T], value: object, where: str) -> T:
    """The inverse of `to_plain`; `ValueError` names a field that does not fit its annotation."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, found {type(value).__name__}")
    hints = _hints(typing.cast("Any", cls))
    fields = {field.name: field for field in dataclasses.fields(typing.cast("Any", cls))}
    names = {name for name, field in fields.items() if field.init}
    if unknown := sorted(set(value) - names):
        raise ValueError(f"{where}: unknown key {unknown[0][:80]!r}")
    required = {n for n in names if fields[n].default is dataclasses.MISSING}
    if missing := sorted(required - set(value)):
        raise ValueError(f"{where}: the key {missing[0]!r} is missing")
    return cls(
        **{name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    )


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    """Annotations, evaluated once: a list of dataclasses asks for the same ones again and again."""
    return typing.get_type_hints(cls)


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _read(inner, value, where)
    if origin is tuple:
        items = _sized(value, list, where)
        return tuple(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        return {
            _key(arguments[0], key, where): _read(arguments[1], item, f"{where}.{key[:80]}")
            for key, item in _sized(value, dict, where).items()
        }
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast("type[Any]", hint), value, where)
    return _scalar(hint, value, where)


def _sized(value: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(value, kind) or len(value) > ITEMS_MAX:
        raise ValueError(f"{where}: expected a {kind.__name__} of at most {ITEMS_MAX} items")
    return value


def _key(hint: Any, key: str, where: str) -> Any:
    if hint is int and not (key.isascii() and key.isdigit() and len(key) < 16):
        raise ValueError(f"{where}: the key {key[:80]!r} is no whole number")
    return hint(key)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and type(value) is int and abs(value) <= FLOAT_INTEGER_MAX:
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{where}: expected {hint.__name__}, found {type(value).__name__}")
    if hint is float and not math.isfinite(value):  # JSON's 1e999
        raise ValueError(f"{where}: a number is too large")
    return value
