"""The demo answers the same, bit for bit, whatever the memory, the policy and the threads.

Within each precision: another one gives other answers.

Prompts of the held-out text, 64 tokens each, against the run with the default settings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert

import flashllm
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.flash.policies import POLICIES
from flashllm.loading import load_decoder
from flashllm.tokenizer import load_tokenizer

PROMPTS = 20
FEWER_PROMPTS = 5
"""Where weights are rounded: the same paths with other kernels."""
TOKENS = 64
ROUNDED = ("int8", "int4")
ROOM_BYTES = 8 << 20
"""By how much the process may grow between asking for the smallest ceiling and using it."""


def questions(directory: Path) -> list[str]:
    count = PROMPTS if directory.name not in ROUNDED else FEWER_PROMPTS
    held_out = Path(flashllm.__file__).parent / "demo" / "heldout.jsonl"
    lines = held_out.read_text(encoding="utf-8").splitlines()
    conversations = [json.loads(line) for line in lines[:: len(lines) // count][:count]]
    return [c["messages"][-1]["content"] for c in conversations]


def answers(directory: Path, **settings: Any) -> list[list[int]]:
    """The likeliest tokens; the end of an answer is no end here, so that each has all 64."""
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    decoder, _, store = load_decoder(directory, **settings)
    found = []
    with store:
        for question in questions(directory):
            logits = decoder.prefill(tokenizer.encode_chat([{"role": "user", "content": question}]))
            ids = [int(np.argmax(logits))]
            while len(ids) < TOKENS:
                ids.append(int(np.argmax(decoder.decode(ids[-1]))))
            found.append(ids)
    return found


@pytest.fixture(scope="module", params=["f16", *ROUNDED])
def directory(
    request: pytest.FixtureRequest, demo: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The demo as it comes, and with all it has rounded, predictors included."""
    if request.param == "f16":
        return demo
    source = Path(flashllm.__file__).parent / "demo"
    out: Path = tmp_path_factory.mktemp("demo") / request.param
    rounded = {"dtype": request.param, "predictor_dtype": request.param}
    convert(source, out, predictors=source / "predictors.safetensors", **rounded)
    return out


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[int]]:
    return answers(directory)


def smallest_memory(directory: Path) -> int:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        load_decoder(directory, memory=10 << 20)
    return caught.value.smallest_bytes + ROOM_BYTES


@pytest.mark.parametrize("share", [1, 2])
def test_memory(directory: Path, expected: list[list[int]], share: int) -> None:
    assert answers(directory, memory=share * smallest_memory(directory)) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 1},
        {"window": 5},
        {"window": 50},
        {"io_threads": 1},
        {"io_threads": 32},
        {"direct": False},
        {"overlap": "none"},
        {"overlap": "hits"},
        {"overlap": "attention"},
        {"overlap": "layer", "window": 1},
    ],
    ids=str,
)
def test_settings(directory: Path, expected: list[list[int]], settings: dict[str, Any]) -> None:
    assert answers(directory, **settings) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(directory: Path, expected: list[list[int]], policy: str) -> None:
    """With the fewest slots, where each of them gives up other neurons."""
    assert answers(directory, memory=smallest_memory(directory), policy=policy) == expected


def test_the_answers_differ_from_each_other(expected: list[list[int]]) -> None:
    assert len({tuple(ids) for ids in expected}) > len(expected) // 2
