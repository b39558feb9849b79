"""The numbers of a turn, packed."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

from flashllm.conversations.exchange import turn_of
from flashllm.conversations.packed_numbers import PackedNumbers
from tests.support.fake_engine import fake_cost

NUMBERS: dict[str, Any] = {
    "prompt_tokens": 12,
    "prefill": {"tokens": 12, "wall_ns": 5 << 40},
    "decode": {"tokens": 3, "share": 0.25, "parts_ns": fake_cost().parts_ns, "none": None},
}


def test_they_are_read_as_the_mapping_that_they_were() -> None:
    packed = PackedNumbers(NUMBERS)
    assert packed == NUMBERS
    assert packed != {**NUMBERS, "prompt_tokens": 13}
    assert packed["decode"]["share"] == 0.25
    assert packed.get("missing") is None
    assert "prefill" in packed
    assert {**packed, "sums_up": 2} == {**NUMBERS, "sums_up": 2}
    assert copy.deepcopy(packed) == packed
    assert repr(packed) == repr(NUMBERS)


def test_they_take_little() -> None:
    packed = PackedNumbers(NUMBERS)
    assert sys.getsizeof(packed) + sys.getsizeof(packed._packed) < 500


def test_what_json_can_hold_nests_as_deeply_as_a_file_may_have_it() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"in": deep}
    text = {"id": 1, "parent": None, "role": "user", "text": "?", "ids": [], "finish_reason": None,
            "created": 0.0, "numbers": deep}  # fmt: skip
    assert json.dumps(dict(turn_of(text).numbers)) == json.dumps(deep)
