"""Schedules of a block: how many rows begin when, and what keys and values are held at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm.batch.admission import Admission, Continuous, Diagonal, Schedule, ZigZag, admission_of
from flashllm.batch.block import RowsInBlock
from flashllm.batch.encoded_row import EncodedRow
from flashllm.batch.row import Row
from flashllm.batch.row_by_row import RowByRow
from flashllm.engine.answer import Prompt
from flashllm.engine.local import open_model
from flashllm.engine.sampling import Sampling


def begun(admission: Admission, places: int, tokens: int, steps: int) -> list[int]:
    """Rows that begin before each step, of answers that take so many steps each."""
    going: list[int] = []
    found = []
    for _ in range(steps):
        count = admission.rows(places - len(going), len(going))
        going = [left - 1 for left in [*going, *[tokens] * count] if left > 1]
        found.append(count)
    return found


def test_rows_begin_when_their_schedule_says() -> None:
    assert begun(Continuous(4), 4, 3, 7) == [4, 0, 0, 4, 0, 0, 4]
    assert begun(ZigZag(), 4, 3, 7) == [4, 0, 0, 4, 0, 0, 4]
    assert begun(Diagonal(8, 4), 8, 4, 9) == [2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert begun(Diagonal(3, 6), 3, 6, 13) == [1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1]
    assert begun(Diagonal(4, 1), 4, 1, 3) == [4, 4, 4]
    assert [Continuous(16, waits=False).rows(free, 16 - free) for free in (0, 1, 3)] == [0, 1, 3]
    some = Continuous(16)
    assert [some.rows(free, 16 - free) for free in (1, 2, 3, 16)] == [0, 2, 3, 16]


def rows(prompt_tokens: int, new_tokens: int) -> list[EncodedRow]:
    made = []
    for number in range(40):
        ids = [5 + (number * 7 + at * at) % 80 for at in range(prompt_tokens)]
        row = Row(number + 1, number, tuple(ids), (), True, new_tokens, Sampling(), ())
        made.append(EncodedRow(number, row, Prompt(ids, [], (), 0)))
    return made


@pytest.mark.parametrize("prompt_tokens", [4, 40])
def test_a_diagonal_holds_what_answers_take_on_average(
    sparse_model: Path, prompt_tokens: int
) -> None:
    places, new_tokens = 8, 24
    peaks: dict[Schedule, int] = {}
    answers = []
    with open_model(sparse_model) as model:
        one_by_one = RowByRow(model, lambda: False, lambda: None)
        expected = list(one_by_one.answers(rows(prompt_tokens, new_tokens)))
        assert one_by_one.costs.kv_tokens_peak == 0
    for schedule in ("continuous", "zigzag", "diagonal"):
        with open_model(sparse_model, contexts=places, slot_memory=1 << 16) as model:
            admission = admission_of(schedule, places, new_tokens)
            block = RowsInBlock(model, lambda: False, lambda: None, admission)
            wanted = rows(prompt_tokens, new_tokens)
            found = {one.number: one.result for one in block.answers(wanted)}
            costs = block.costs
            counted = costs.prefill["bytes_read"] + costs.decode["bytes_read"]
            assert counted == model.reader_stats()["bytes_read"] > 0, (
                "what all rows are told to cost"
            )
            peaks[schedule] = block.costs.kv_tokens_peak
            answers.append([found[number] for number in range(len(found))])
    assert answers == [[one.result for one in expected]] * 3
    s, n = prompt_tokens, new_tokens
    assert peaks["zigzag"] == peaks["continuous"] == places * (s + n - 1)
    # Rows end one after another, n / places steps apart: the middle of these steps is the average,
    # their end the peak, a step before which the others went beside the last one's prompt. With
    # many places the ratio is (2 s + 2 n) / (2 s + n), the paper's.
    peak = places * (s + n / 2 + n / places / 2)
    assert peak - places <= peaks["diagonal"] <= peak
