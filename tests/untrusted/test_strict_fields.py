"""Dataclasses from plain values: every field is of its type, or the error names it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from flashllm.untrusted import strict_fields
from flashllm.untrusted.strict_fields import from_plain, to_plain


@dataclass(frozen=True)
class Inner:
    x: float


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    inner: Inner
    by_size: dict[int, float]
    by_name: dict[str, bool]
    rows: tuple[Inner, ...] = ()
    rest: Inner | None = None
    computed: int = field(init=False, default=7)


GOOD: dict[str, Any] = {"name": "a", "count": 3, "inner": {"x": 1.5}, "by_size": {}, "by_name": {}}


def test_round_trip_through_json() -> None:
    outer = Outer("a", 3, Inner(1.5), {512: 1.0}, {"k": True}, (Inner(2.0),), Inner(0.0))
    plain = to_plain(outer)
    assert "computed" not in plain
    assert from_plain(Outer, json.loads(json.dumps(plain)), "top") == outer
    assert from_plain(Outer, GOOD, "top") == Outer("a", 3, Inner(1.5), {}, {})
    assert from_plain(Outer, GOOD | {"rest": None}, "top").rest is None
    assert from_plain(Inner, {"x": 2}, "top") == Inner(2.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"count": True}, "top.count: expected int, found bool"),
        ({"count": 3.0}, "top.count: expected int, found float"),
        ({"name": None}, "top.name: expected str"),
        ({"inner": []}, "top.inner: expected an object"),
        ({"inner": {"x": "1"}}, "top.inner.x: expected float, found str"),
        ({"inner": {"x": float("inf")}}, "top.inner.x: a number is too large"),
        ({"inner": {"x": float("nan")}}, "top.inner.x: a number is too large"),
        ({"inner": {"x": 10**400}}, "top.inner.x: expected float, found int"),
        ({"inner": {}}, "top.inner: the key 'x' is missing"),
        ({"rows": {}}, "top.rows: expected a list of at most"),
        ({"rows": [{"x": 1}, 2]}, r"top.rows\[1\]: expected an object"),
        ({"by_size": []}, "top.by_size: expected a dict"),
        ({"by_size": {"-1": 1.0}}, "top.by_size: the key '-1' is no whole number"),
        ({"by_size": {"1" * 16: 1.0}}, "is no whole number"),
        ({"by_name": {"k": 1}}, "top.by_name.k: expected bool"),
        ({"more": 1}, "top: unknown key 'more'"),
        ({"computed": 1}, "top: unknown key 'computed'"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        from_plain(Outer, GOOD | changes, "top")


def test_too_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_fields, "ITEMS_MAX", 2)
    with pytest.raises(ValueError, match="at most 2 items"):
        from_plain(Outer, GOOD | {"rows": [{"x": 1}] * 3}, "top")
