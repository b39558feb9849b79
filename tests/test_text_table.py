"""Columns of text."""

from __future__ import annotations

from flashllm.text_table import columns


def test_numbers_stand_to_the_right() -> None:
    rows = [("", "bytes", "share"), ("long name", "5", "100%"), ("short", "12,345", "1%")]
    assert columns(rows).splitlines() == [
        "            bytes  share",
        "long name       5   100%",
        "short      12,345     1%",
    ]


def test_rows_may_end_early() -> None:
    rows = [("", "perplexity", "to dense"), ("dense", "12.5"), ("predicted", "12.75", "1.02")]
    assert columns(rows).splitlines() == [
        "           perplexity  to dense",
        "dense            12.5",
        "predicted       12.75      1.02",
    ]


def test_text_stands_to_the_left_and_no_line_ends_in_spaces() -> None:
    rows = [("key", "value", "file"), ("seed", "1", ""), ("k", "longer", "file 3")]
    assert columns(rows, left=3).splitlines() == [
        "key   value   file",
        "seed  1",
        "k     longer  file 3",
    ]
