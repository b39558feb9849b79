"""Changed copies of kept inputs: bytes cut and replaced, values of JSON exchanged for odd ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

DEEP: Any = []
for _ in range(40):
    DEEP = [DEEP]
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 256, 1024, 1 << 15, 1 << 20, 1 << 31, 1 << 32, 1 << 40,
    1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**30, 0.0, -0.0, 0.5, 1.0, 1e-300, 1e300, 1e999,
    float("nan"), "", "a", "0", "-1", "1e9", "\ud800", "\u202e", "\x1b[2J", "../x", "/etc/passwd",
    "x" * 600, "default", "none", "relu", [], [None], [0, 8], [0] * 9, [[]], {}, {"a": {}},
    {"type": "default"}, DEEP,
)  # fmt: skip
ODD_KEYS = ("", "a", "\ud800", "__metadata__", "__class__", "../x", "n" * 600, "0", "-1")
ODD_BYTES = (b"", b"\0", b"\xff", b"\xff\xfe", b'"', b"{", b"}", b"[" * 2000, b",", b":", b"\\u",
             b"NaN", b"1e999", b"9" * 5000, b"-", b"\x1b", b"\n", b"\xe2\x80")  # fmt: skip


@st.composite
def changed_bytes(draw: st.DrawFn, inputs: Sequence[bytes], changes_max: int = 4) -> bytes:
    """One of `inputs` with stretches removed, repeated and replaced."""
    raw = draw(st.sampled_from(inputs))
    for _ in range(draw(st.integers(0, changes_max))):
        first = draw(st.integers(0, len(raw)))
        last = min(len(raw), first + draw(st.integers(0, 12)))
        new = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from(ODD_BYTES),
                st.just(raw[first:last] * 2),
                st.just(bytes(byte ^ 1 for byte in raw[first:last])),
            )
        )
        raw = raw[:first] + new + raw[last:]
    return raw


@st.composite
def changed_json(draw: st.DrawFn, inputs: Sequence[bytes], changes_max: int = 3) -> bytes:
    """One of `inputs`, which are JSON, with values and keys exchanged; now and then no JSON."""
    value = json.loads(draw(st.sampled_from(inputs)))
    for _ in range(draw(st.integers(0, changes_max))):
        value = _changed(draw, value)
    raw = json.dumps(value).encode()
    return draw(changed_bytes([raw], 2)) if draw(st.integers(0, 7)) == 7 else raw


def _changed(draw: st.DrawFn, value: Any) -> Any:
    """`value` with one change somewhere within it."""
    root = [copy.deepcopy(value)]
    places = list(_places(root))
    holder, key = draw(st.sampled_from(places))
    kind = draw(st.integers(0, 9))
    if kind == 0 and holder is not root:
        del holder[key]
    elif kind == 1:
        holder[key] = copy.deepcopy(draw(st.sampled_from(_values(places))))
    elif kind == 2 and isinstance(holder[key], dict):
        holder[key][draw(st.sampled_from(ODD_KEYS))] = draw(st.sampled_from(ODD_VALUES))
    elif kind == 3 and isinstance(holder[key], list) and holder[key]:
        holder[key] *= 2
    elif kind == 4 and isinstance(holder, dict):
        holder[draw(st.sampled_from(ODD_KEYS))] = holder.pop(key)
    elif kind == 5 and type(holder[key]) is int:
        holder[key] += draw(st.sampled_from((-1, 1, -holder[key], holder[key], 1 << 32)))
    else:
        holder[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
    return root[0]


def _places(value: Any) -> Any:
    """Every object or list below `value` with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(items):
        yield value, key
        if isinstance(child, (dict, list)):
            yield from _places(child)


def _values(places: Sequence[tuple[Any, Any]]) -> list[Any]:
    return [holder[key] for holder, key in places]
