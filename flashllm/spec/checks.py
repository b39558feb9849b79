"""Limits of the numbers in a spec, and how a manifest's values are checked against its fields."""

from __future__ import annotations

import dataclasses
from typing import Any

from flashllm.errors import LayoutError

# No real model comes near these limits; a header beyond them is damaged or hostile.
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_EXPERTS = 1 << 12
MAX_VOCAB = 1 << 23
MAX_POSITIONS = 1 << 24
MAX_SCALE = 1e6
MIN_SCALE = 1e-9


def check_number(name: str, value: object, limit: float) -> None:
    """`LayoutError` for anything but a float of `MIN_SCALE` to `limit`."""
    if not isinstance(value, float) or not MIN_SCALE <= value <= limit:
        raise LayoutError(f"spec: {name} is {value!r}; expected {MIN_SCALE:g} to {limit:g}")


def known_fields(kind: Any, values: object, where: str) -> dict[str, Any]:
    """The values of a dataclass's fields; `LayoutError` for an unknown or a missing one."""
    if not isinstance(values, dict):
        raise LayoutError(f"{where}: expected an object")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise LayoutError(f"{where}: unknown keys {unknown}; was it written by a newer version?")
    missing = sorted(
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in values
    )
    if missing:
        raise LayoutError(f"{where}: keys {missing} are missing")
    return dict(values)
