"""From a line of a batch's file to its row."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashllm.batch import openai_row
from flashllm.batch.row import (
    ROW_KEYS,
    Row,
    RowDefaults,
    RowFailure,
    RowForm,
    RowId,
    check_keys,
    invalid,
    make_row,
)
from flashllm.errors import BatchRowError
from flashllm.untrusted.strict_json import parse_object

ROW_BYTES_MAX = 16 << 20
"""As much as `run` takes of a prompt; a longer line is skipped and never held."""
VALUES_MAX = 1 << 20
"""Commas and colons of a line: a text with more of them is longer than contexts are."""
DEPTH_MAX = 16
ID_CHARACTERS_MAX = 1000


def form_of(line: bytes | None) -> RowForm | None:
    """The form of the file whose first row this is; None where the line is no object."""
    try:
        values = _object_of(line)
    except BatchRowError:
        return None
    return "openai" if _is_openai(values) else "rows"


def read_row(
    line: bytes | None, number: int, form: RowForm, defaults: RowDefaults
) -> Row | RowFailure:
    """The row of line `number`, or what is wrong with it; None is a line that is too long."""
    id_: RowId = None if form == "openai" else number
    try:
        values = _object_of(line)
        if _is_openai(values) != (form == "openai"):
            raise BatchRowError(
                "mixed_formats", "the row is not of the format that the first one has"
            )
        id_ = _id_of(values, id_, form)
        if form == "openai":
            return openai_row.openai_row(values, number, id_, defaults)
        check_keys(values, ROW_KEYS)
        return make_row(values, number, id_, defaults, raw=defaults.raw)
    except BatchRowError as error:
        return RowFailure.of(number, id_, error)


def _object_of(line: bytes | None) -> dict[str, Any]:
    if line is None:
        raise BatchRowError("row_too_long", f"the row is longer than {ROW_BYTES_MAX >> 20} MiB")
    return parse_object(
        line.removeprefix(codecs.BOM_UTF8),
        Path("the row"),
        lambda text: BatchRowError("invalid_json", text),
        DEPTH_MAX,
        VALUES_MAX,
    )


def _is_openai(values: Mapping[str, Any]) -> bool:
    return "custom_id" in values or "body" in values


def _id_of(values: Mapping[str, Any], default: RowId, form: RowForm) -> RowId:
    key = "custom_id" if form == "openai" else "id"
    value = values.get(key)
    if value is None:
        if default is None:
            raise BatchRowError("missing_key", f"the row has no {key}; give it one of its own")
        return default
    if type(value) not in (str, int) or len(str(value)) > ID_CHARACTERS_MAX:
        raise invalid(key, value, f"a text of at most {ID_CHARACTERS_MAX} characters")
    return value  # type: ignore[no-any-return]
