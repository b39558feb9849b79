"""JSON from untrusted files: bounded, without repeated keys, without NaN."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flashllm.errors import FlashllmError

DEPTH_MAX = 8


def parse_object(
    raw: bytes,
    path: Path,
    error: Callable[[str], FlashllmError],
    depth_max: int = DEPTH_MAX,
    values_max: int | None = None,
) -> dict[str, Any]:
    """The object that `raw` spells, or `error` naming `path`.

    Refused: text that is not UTF-8, a key given twice, NaN and infinities, nesting beyond
    `depth_max`, anything but an object at the top. The caller has bounded the size of `raw`; with
    `values_max` it is also refused, before it costs time and memory, for more commas and colons
    than that, which is at least as many as there are values.
    """
    if values_max is not None and (found := raw.count(b",") + raw.count(b":")) > values_max:
        raise error(f"{path}: up to {found} keys and values; at most {values_max} are accepted")
    try:
        values = loads_strict(raw)
        _check_depth(values, depth_max)
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: not valid JSON: {problem}") from problem
    if not isinstance(values, dict):
        raise error(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def loads_strict(raw: bytes) -> object:
    """What `raw` spells.

    `ValueError` for bytes that are no UTF-8, a key that occurs twice and for NaN; `RecursionError`
    for nesting that is deeper than Python goes.
    """
    return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {name[:80]!r} occurs twice")
    return values


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _check_depth(value: object, depth_left: int) -> None:
    """`ValueError` where objects and lists nest deeper than `depth_left`."""
    if not isinstance(value, dict | list):
        return
    if depth_left == 0:
        raise ValueError("objects and lists nest too deep")
    for child in value.values() if isinstance(value, dict) else value:
        _check_depth(child, depth_left - 1)
