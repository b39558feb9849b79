"""How many rows to answer at once: found by trying, since no model of a machine knows it better.

A block is tried with short prompts and a few tokens, each number of rows with the model opened
anew, since memory for rows is taken from that for weights. Numbers are doubled until that gains
nothing, or no longer fits under the ceiling; and the largest that fits is tried too, since many
rows read layers in order, which few do not gain from. Where a part of keys and values is on flash,
the time to read them at the end of the answers is added to a step's, since short trials read none.
No answer depends on what is found. Source: FlexGen (arXiv 2303.06865), section 4.3,
whose policies are adjusted by hand where they do not fit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashllm.errors import MemoryCeilingTooSmall, OutOfMemory
from flashllm.telemetry.costs import ratio

if TYPE_CHECKING:
    from flashllm.engine.local import Model
    from flashllm.telemetry.costs import TokenCost

PROMPT_TOKENS = 8
FIRST_STEPS = 3
"""Which read what is not in memory yet, and are not counted."""
STEPS = 5
GAIN_MIN = 1.05
"""A larger block has to be faster by so much, since it leaves less memory to weights."""

_PAGES_READ_BYTES = 32 << 10
"""What one read of pages has, about: those of a head lie one after the other."""
MISSES = 2
"""So many numbers in a row that gain nothing end it: one may have met a busy moment."""

OpenEngine = Callable[[int, bool], "AbstractContextManager[Model]"]
"""Opens the model for so many rows at once, whose keys and values may be on flash, or may not."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A number of rows, and what was measured with it."""

    rows: int
    tokens_per_second: float
    """0 where it did not fit."""
    problem: str = ""


def find_block(
    open_engine: OpenEngine,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    most: int,
    is_stopped: Callable[[], bool],
    on_trial: Callable[[Trial], None],
) -> int:
    """The fastest number of rows, of 1, 2, 4 ... up to `most`, and one above the best of them.

    `prompts` are of some rows, and answers have `new_tokens`. Errors: those of opening the model
    for one row.
    """
    tried: dict[int, Trial] = {}

    def is_better(rows: int, best: int, on_flash: bool = True) -> bool:
        trial = tried[rows] = _tried(open_engine, prompts, new_tokens, rows, on_flash)
        on_trial(trial)
        return trial.tokens_per_second > GAIN_MIN * tried[best].tokens_per_second

    def doubled(rows: int, best: int, misses_most: int) -> tuple[int, int]:
        """The best of `rows`, twice as many and so on while that gains, and the next number."""
        misses = 0
        while rows <= most and misses < misses_most and not is_stopped():
            if is_better(rows, best):
                best, misses = rows, 0
            else:
                misses = misses + 1 if tried[rows].tokens_per_second else misses_most
            rows *= 2
        return best, rows

    tried[1] = _tried(open_engine, prompts, new_tokens, 1, on_flash=True)
    on_trial(tried[1])
    best, rows = doubled(2, 1, MISSES)
    if tried[max(tried)].tokens_per_second:
        while 2 * rows <= most:
            rows *= 2
        # What does not fit without pages is told at once.
        while rows not in tried and rows <= most and not is_stopped():
            if is_better(rows, best, on_flash=False):
                best, _ = doubled(2 * rows, rows, misses_most=1)
            if tried[rows].tokens_per_second:
                break
            rows //= 2
    between = (best + min(2 * best, most)) // 2
    if best < between and between not in tried and not is_stopped() and is_better(between, best):
        best = between
    return best


def _tried(
    open_engine: OpenEngine,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    rows: int,
    on_flash: bool,
) -> Trial:
    try:
        with open_engine(rows, on_flash) as model:
            return Trial(rows, tokens_per_second(model, prompts, new_tokens, rows))
    except (MemoryCeilingTooSmall, OutOfMemory) as error:
        if rows == 1:
            raise
        return Trial(rows, 0.0, str(error).splitlines()[0])


def tokens_per_second(
    model: Model, prompts: Sequence[Sequence[int]], new_tokens: int, rows: int
) -> float:
    """Tokens of a few steps of so many rows, whose prompts are the beginnings of these.

    Told as if rows were at the end of answers of `new_tokens`, for what is on flash of theirs.
    """
    end_tokens = max(map(len, prompts)) + new_tokens
    contexts = [None, *(model.new_context() for _ in range(rows - 1))]
    going = [
        model.generate(
            prompts[number % len(prompts)][:PROMPT_TOKENS],
            max_tokens=FIRST_STEPS + STEPS + 1,
            context=context,
        )
        for number, context in enumerate(contexts)
    ]
    going[0].first_of_each(going[1:])
    rates: list[float] = []
    for _ in range(FIRST_STEPS + STEPS):
        going = [one for one in going if one.pending is not None]
        if not going:  # the answers were shorter
            break
        begin = time.monotonic()
        tokens = going[0].next_of_each(going[1:])
        seconds = time.monotonic() - begin
        costs = [token.cost for token in tokens if token is not None and token.cost is not None]
        seconds += _paging_seconds(model, end_tokens, costs)
        rates.append(len(tokens) / seconds)
    for one in going:
        one.close()
    return statistics.median(rates[FIRST_STEPS:] or rates or [0.0])


def _paging_seconds(model: Model, end_tokens: int, costs: Sequence[TokenCost]) -> float:
    """What a step reads of keys and values with so many tokens in each context, beyond its own.

    At the rate of the model's disk, or else at that of the step's own reads.
    """
    pages = model.plan.kv_pages
    if pages is None:
        return 0.0
    held = pages.flash_bytes * min(end_tokens / model.plan.context, 1.0)
    missing = max(held - pages.memory_bytes, 0.0)
    flash = model.rates().flash
    if flash is not None:
        return missing / flash.throughput(_PAGES_READ_BYTES)
    busy = sum(cost.io_busy_ns for cost in costs) / 1e9
    return missing * ratio(busy, sum(cost.bytes_read for cost in costs))
