"""The numbers of the status line."""

from __future__ import annotations

import pytest

from flashllm.ui.chat.status import (
    AnswerStatistics,
    format_released,
    join_parts,
    prefill_text,
)
from flashllm.units import format_memory
from tests.support.fake_engine import FakeToken, fake_cost


def test_the_first_token_counts_but_its_cost_is_the_prompts() -> None:
    statistics = AnswerStatistics()
    statistics.add(FakeToken(1, "a", fake_cost(wall_ns=10**10, bytes_read=10**9, hits=0, misses=9)))
    assert statistics.parts(1 << 30) == ["1 tok", "RSS 310 of 1024 MiB"]
    statistics.add(FakeToken(2, "b"))
    statistics.add(FakeToken(3, "c", fake_cost(wall_ns=150_000_000, bytes_read=500_000)))
    assert statistics.parts(512 << 20) == [
        "3 tok",
        "10.0 tok/s",
        "0.40 MB/tok",
        "hit 91 %",
        "RSS 310 of 512 MiB",
    ]


@pytest.mark.parametrize(
    ("rss_bytes", "ceiling_bytes", "expected"),
    [
        (310 << 20, 512 << 20, "310 of 512 MiB"),
        (310 << 20, 16 << 30, "310 MiB of 16.0 GiB"),
        (6 << 30, 16 << 30, "6.0 of 16.0 GiB"),
        ((16 << 30) + (3 << 20), 16 << 30, "16387 of 16384 MiB"),
        ((16 << 30) - (3 << 20), 16 << 30, "16381 of 16384 MiB"),
    ],
)
def test_memory(rss_bytes: int, ceiling_bytes: int, expected: str) -> None:
    assert format_memory(rss_bytes, ceiling_bytes) == expected


def test_memory_that_was_given_back_is_said_in_a_line() -> None:
    words = format_released(24 << 20)
    assert (
        words == "24.0 MiB of weights left memory, to stay below the ceiling; answers are the same"
    )
    assert format_released(0) == "the model has all of its memory again"


def test_prefill_says_what_is_left_once_it_can_know() -> None:
    assert prefill_text(0, 0, 5.0) == "reading the prompt"
    assert prefill_text(10, 40, 0.2) == "reading the prompt: 10 of 40 tokens"
    assert prefill_text(10, 40, 2.0) == "reading the prompt: 10 of 40 tokens, 6 s left"
    assert prefill_text(40, 40, 9.0) == "reading the prompt: 40 of 40 tokens"


@pytest.mark.parametrize(
    ("width", "expected"),
    [(80, "aaaa | bb | cc"), (9, "aaaa | bb"), (8, "aaaa"), (3, "aaa"), (0, "")],
)
def test_parts_that_do_not_fit_are_left_out(width: int, expected: str) -> None:
    assert join_parts(["aaaa", "bb", "cc"], width) == expected


def test_no_parts() -> None:
    assert join_parts([], 10) == ""
