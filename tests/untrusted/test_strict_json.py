"""JSON of strangers: an object of bounded depth without repeated keys, or an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm.errors import LayoutError
from flashllm.untrusted.strict_json import loads_strict, parse_object

PATH = Path("folder/x.json")


def test_an_object_is_read() -> None:
    assert parse_object(b'{"a": [1, {"b": null}]}', PATH, LayoutError) == {"a": [1, {"b": None}]}
    assert loads_strict(b"3") == 3


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"[1]", "expected a JSON object, found list"),
        (b"", "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice"),
        (b'{"a": 1, "b": 2, "c": {"d": 3, "b": 1, "b": 2}}', "the key 'b' occurs twice"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a":' * 9 + b"1" + b"}" * 9, "nest too deep"),
        (b'{"a": ' + b"[" * 8 + b"]" * 8 + b"}", "nest too deep"),
        (b'{"a": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_anything_else_is_refused_with_its_file(raw: bytes, match: str) -> None:
    with pytest.raises(LayoutError, match=match) as refused:
        parse_object(raw, PATH, LayoutError)
    assert str(refused.value).startswith(str(PATH))


def test_values_are_counted_before_they_are_parsed() -> None:
    raw = b'{"a": [1, 2, 3]}'
    assert parse_object(raw, PATH, LayoutError, values_max=3)
    with pytest.raises(LayoutError, match="up to 3 keys and values; at most 2"):
        parse_object(raw, PATH, LayoutError, values_max=2)
