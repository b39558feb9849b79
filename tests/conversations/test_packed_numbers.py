"""The numbers of a turn, packed."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

from flashllm.conversations.exchange import turn_of
from flashllm.conversations.packed_numbers import PackedNumbers
from flashllm.telemetry.costs import decode_summary
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
    costs = [fake_cost(wall_ns=50_000_000 + number) for number in range(20)]
    prefill = {"tokens": 12, "reused_tokens": 4, "wall_ns": 107_283_551, "bytes_read": 11_796_480}
    numbers = {
        "prompt_tokens": 16,
        "prefill": prefill,
        "decode": decode_summary(costs),
        "tokens": 20,
    }
    packed = PackedNumbers(json.loads(json.dumps(numbers)))
    assert packed == json.loads(json.dumps(numbers))
    assert sys.getsizeof(packed) + sys.getsizeof(packed._packed) < 300, "each answer has them"


def test_what_json_can_hold_nests_as_deeply_as_a_file_may_have_it() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"in": deep}
    text = {"id": 1, "parent": None, "role": "user", "text": "?", "ids": [], "finish_reason": None,
            "created": 0.0, "numbers": deep}  # fmt: skip
    assert json.dumps(dict(turn_of(text).numbers)) == json.dumps(deep)
