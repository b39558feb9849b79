"""Errors that Python code sees name its keywords, not the flags of commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import flashllm
from flashllm.errors import FlashllmError, MemoryCeilingTooSmall, UsageError
from flashllm.library.option_keywords import with_keywords


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("Try --memory 512MiB", 'Try memory="512MiB"'),
        ("or --ctx-size 512 fits", "or context=512 fits"),
        ("--ctx-size 512 --kv-dtype int8", 'context=512, kv_dtype="int8"'),
        ("--kv-dtype int9: expected one of f32", "kv_dtype int9: expected one of f32"),
        ("use --select gate, which is exact", 'use select="gate", which is exact'),
        ("--window 5 is for the policy window", "window=5 is for the policy window"),
        ("Give --policy window, or no --window", 'Give policy="window", or no window'),
        ("ctx-size is 0; expected 1 to 160", "context is 0; expected 1 to 160"),
        ("io-threads is 999; expected", "io_threads is 999; expected"),
        ("convert it with --predictors train", "convert it with --predictors train"),
        ("/models/--memory", "/models/memory"),
    ],
)
def test_flags_become_keywords(flags: str, keywords: str) -> None:
    assert with_keywords(flags) == keywords


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "10MiB"},
        {"context": 0},
        {"io_threads": 100_000},
        {"kv_dtype": "f64"},
        {"select": "gate"},
        {"policy": "lru", "window": 3},
        {"overlap": "all"},
        {"contexts": 0},
    ],
)
def test_opening_says_keywords(sparse_model: Path, options: dict[str, Any]) -> None:
    with pytest.raises(FlashllmError) as raised:
        flashllm.open_model(sparse_model, **options)
    assert not re.search(r"--(?!predictors)|ctx-size|io-threads", str(raised.value))
    assert any(name in str(raised.value) for name in options)


def test_what_is_advised_works(sparse_model: Path) -> None:
    with pytest.raises(MemoryCeilingTooSmall) as raised:
        flashllm.open_model(sparse_model, memory="10MiB")
    assert raised.value.smallest_bytes > 10 << 20
    advised = re.search(r'memory="(\d+MiB)"', str(raised.value))
    assert advised is not None
    with flashllm.open_model(sparse_model, memory=advised[1]) as model:
        assert model.generate([5, 6], 1).complete().ids


@pytest.mark.parametrize("memory", ["8", "8000", "7.5"])
def test_a_number_without_a_unit_is_refused(sparse_model: Path, memory: str) -> None:
    """As on the command line."""
    with pytest.raises(UsageError, match=rf"memory: {memory} has no unit; did you mean {memory}"):
        flashllm.open_model(sparse_model, memory=memory)
