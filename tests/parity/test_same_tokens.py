"""The demo answers the same, bit for bit, whatever the memory, the policy and the threads.

Twenty prompts of the held-out text, 64 tokens each, against the run with the default settings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashllm
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.flash.policies import POLICIES
from flashllm.loading import load_decoder
from flashllm.tokenizer import load_tokenizer

PROMPTS = 20
TOKENS = 64
ROOM_BYTES = 8 << 20
"""By how much the process may grow between asking for the smallest ceiling and using it."""


def questions() -> list[str]:
    held_out = Path(flashllm.__file__).parent / "demo" / "heldout.jsonl"
    lines = held_out.read_text(encoding="utf-8").splitlines()
    conversations = [json.loads(line) for line in lines[:: len(lines) // PROMPTS][:PROMPTS]]
    return [c["messages"][-1]["content"] for c in conversations]


def answers(directory: Path, **settings: Any) -> list[list[int]]:
    """The likeliest tokens; the end of an answer is no end here, so that each has all 64."""
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    decoder, _, store = load_decoder(directory, **settings)
    found = []
    with store:
        for question in questions():
            logits = decoder.prefill(tokenizer.encode_chat([{"role": "user", "content": question}]))
            ids = [int(np.argmax(logits))]
            while len(ids) < TOKENS:
                ids.append(int(np.argmax(decoder.decode(ids[-1]))))
            found.append(ids)
    return found


@pytest.fixture(scope="module")
def expected(demo: Path) -> list[list[int]]:
    return answers(demo)


def smallest_memory(directory: Path) -> int:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        load_decoder(directory, memory=10 << 20)
    return caught.value.smallest_bytes + ROOM_BYTES


@pytest.mark.parametrize("share", [1, 2])
def test_memory(demo: Path, expected: list[list[int]], share: int) -> None:
    assert answers(demo, memory=share * smallest_memory(demo)) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 1},
        {"window": 5},
        {"window": 50},
        {"io_threads": 1},
        {"io_threads": 32},
        {"direct": False},
    ],
    ids=str,
)
def test_settings(demo: Path, expected: list[list[int]], settings: dict[str, Any]) -> None:
    assert answers(demo, **settings) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(demo: Path, expected: list[list[int]], policy: str) -> None:
    """With the fewest slots, where each of them gives up other neurons."""
    assert answers(demo, memory=smallest_memory(demo), policy=policy) == expected


def test_the_answers_differ_from_each_other(expected: list[list[int]]) -> None:
    assert len({tuple(ids) for ids in expected}) > PROMPTS // 2
