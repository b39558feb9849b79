"""The number that stands in all JSON that commands print; docs/json.md lists the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON_SCHEMA = 1
"""Raised when a field goes or changes its meaning; new fields may come without."""


def with_schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """An object as it is printed: the number, then its fields."""
    return {"schema": JSON_SCHEMA, **values}
