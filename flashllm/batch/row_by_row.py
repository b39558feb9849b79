"""A schedule of a batch, and the one that answers row after row.

A schedule gets rows as ids and gives answers, in any order; it knows no files. It may take as many
rows ahead as it computes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flashllm.batch.answer_lines import RowAnswer
from flashllm.batch.costs import BatchCosts
from flashllm.batch.encoded_row import EncodedRow, failure_of
from flashllm.batch.row import Row, RowFailure
from flashllm.errors import FlashllmError

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, EngineGeneration


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a row."""

    number: int
    result: RowAnswer | RowFailure


class Schedule(Protocol):
    """In which order rows are computed."""

    costs: BatchCosts
    """Of all answers that it has given."""

    def answers(self, rows: Iterable[EncodedRow]) -> Iterator[Finished]:
        """Answers rows, each once, in any order; ends early where it is stopped.

        Raises what ends the whole batch: a model that is damaged, a disk that fails.
        """


class RowByRow:
    """One row after the other, in one context."""

    def __init__(
        self, engine: Engine, is_stopped: Callable[[], bool], on_token: Callable[[], None]
    ) -> None:
        """`on_token` is called after each token of an answer."""
        self.costs = BatchCosts()
        self._engine = engine
        self._is_stopped = is_stopped
        self._on_token = on_token

    def answers(self, rows: Iterable[EncodedRow]) -> Iterator[Finished]:
        """As `Schedule` has it."""
        for encoded in rows:
            try:
                result = self._answer(encoded)
            except FlashllmError as error:
                yield Finished(encoded.number, failure_of(encoded.row, error))
                continue
            if result is None:
                return
            yield Finished(encoded.number, result)

    def _answer(self, encoded: EncodedRow) -> RowAnswer | None:
        """The row's answer; None if the batch was stopped meanwhile."""
        generation = self._engine.generate(encoded.prompt.ids, **encoded.options())
        if self._is_stopped():  # asked for while there was nothing to stop yet
            generation.close()
            return None
        for _ in generation:
            self._on_token()
        answer = answer_of(encoded.row, generation, self._engine)
        if answer is not None:
            self.costs.add(generation.report())
        return answer


def answer_of(row: Row, generation: EngineGeneration, engine: Engine) -> RowAnswer | None:
    """What a row's generation has come to; None for one that was stopped."""
    reason = generation.finish_reason
    if reason is None or reason == "cancelled":
        return None
    return RowAnswer(
        row,
        generation.ids,
        generation.text,
        reason,
        generation.prompt_tokens,
        engine.has_tokenizer,
    )
