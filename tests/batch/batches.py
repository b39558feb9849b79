"""Small batches on a scripted engine: rows, a file of answers, and schedules in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from flashllm.batch.encoded_row import EncodedRow
from flashllm.batch.input_rows import InputRows, open_source, read_rows
from flashllm.batch.journal import BatchKey
from flashllm.batch.output import FileOutput
from flashllm.batch.row import RowDefaults
from flashllm.batch.row_by_row import Finished, RowByRow
from flashllm.batch.run import BatchRun, BatchSummary
from tests.support.fake_engine import FakeModel

DEFAULTS = RowDefaults()
KEY = BatchKey("rows", "model", {"--temp": 0.0})
LINES = (
    '{"id": "a", "prompt": "x"}',
    "nope",
    '{"id": "a", "prompt": "y"}',
    '{"prompt": "z", "max_tokens": 1}',
    '{"id": "e\\ud800\u00e9", "messages": [{"role": "user", "content": "w"}]}',
)


class Shuffled:
    """A schedule that takes all rows first and finishes them in an order of its own."""

    def __init__(self, inner: RowByRow, order: Callable[[list[EncodedRow]], Iterable[Any]]) -> None:
        self.costs = inner.costs
        self._inner, self._order = inner, order

    def answers(self, rows: Iterable[EncodedRow]) -> Iterator[Finished]:
        return self._inner.answers(iter(self._order(list(rows))))


def write_rows(folder: Path, lines: Iterable[str] = LINES) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    return str(path)


def open_rows(path: str, scratch: Path | None = None) -> InputRows:
    return read_rows(open_source(path), path, DEFAULTS, scratch)


def open_output(folder: Path, rows: InputRows, key: BatchKey = KEY, **options: Any) -> FileOutput:
    return FileOutput(folder / "answers.jsonl", rows, key, **options)


def run(
    folder: Path,
    *,
    key: BatchKey = KEY,
    model: FakeModel | None = None,
    order: Callable[[list[EncodedRow]], Iterable[Any]] | None = None,
    **options: Any,
) -> BatchSummary:
    """Answers the rows of a folder into it, all `word word`; with an `order`, in that order."""
    model = model or FakeModel(["word ", "word"])
    with (
        open_rows(str(folder / "rows.jsonl")) as rows,
        open_output(folder, rows, key, **options) as output,
    ):
        row_by_row = RowByRow(model, model.cancelled.is_set, lambda: None)
        schedule = row_by_row if order is None else Shuffled(row_by_row, order)
        batch = BatchRun(model, rows, DEFAULTS, output, model.cancelled.is_set, lambda: None)
        return batch.answer(schedule)


def answers(folder: Path) -> bytes:
    return (folder / "answers.jsonl").read_bytes()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answers(folder).splitlines()]


def names(folder: Path) -> list[str]:
    """Of the files of a folder, but the rows."""
    return sorted(path.name for path in folder.iterdir() if path.name != "rows.jsonl")
