"""In which order rows are computed: those whose prompts begin alike follow one another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from flashllm.batch.encoded_row import EncodedRow

WINDOW_ROWS = 256
"""Rows that are read ahead; so many answers at the most wait for one that is computed later."""


def by_prefix(rows: Iterable[EncodedRow], window: int = WINDOW_ROWS) -> Iterator[EncodedRow]:
    """The rows of each window in the order of their ids, equal ones as they came.

    So a row begins like the one before it as far as any does, and a context that has that one has
    the beginning of the next.
    """
    waiting = iter(rows)
    while ahead := list(itertools.islice(waiting, window)):
        yield from sorted(ahead, key=lambda row: row.prompt.ids)
