"""Rows as an engine takes them, and the schedule that answers one after the other.

A schedule gets rows as ids and gives answers, in any order; it knows no files. It may take as many
rows ahead as it computes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flashllm.batch.answer_lines import RowAnswer
from flashllm.batch.costs import BatchCosts
from flashllm.batch.row import Row, RowDefaults, RowFailure
from flashllm.engine.answer import Prompt, Request, answers_messages, encode
from flashllm.errors import (
    BatchRowError,
    ChecksumMismatch,
    FlashllmError,
    LayoutError,
    ModelClosed,
    ModelError,
    ModelTruncated,
    NoTokenizer,
    PromptTooLong,
    UsageError,
)

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, EngineGeneration

_OF_THE_MODEL = (ChecksumMismatch, LayoutError, ModelClosed, ModelTruncated)
"""Errors that every further row would meet too."""
_CODES: tuple[tuple[type[FlashllmError], str], ...] = (
    (PromptTooLong, "context_length_exceeded"),
    (NoTokenizer, "no_tokenizer"),
    (UsageError, "invalid_request"),
    (ModelError, "model_error"),
)
"""Errors of one row -> its code; the first that fits."""


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A row, its number among all of the file, and the ids that an engine continues."""

    number: int
    row: Row
    prompt: Prompt


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
        row, prompt = encoded.row, encoded.prompt
        generation = self._engine.generate(
            prompt.ids,
            max_tokens=row.max_tokens,
            sampling=row.sampling,
            stop=prompt.stop,
            answer=len(prompt.begun),
        )
        if self._is_stopped():  # asked for while there was nothing to stop yet
            generation.close()
            return None
        for _ in generation:
            self._on_token()
        answer = answer_of(row, generation, self._engine)
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


def encode_row(engine: Engine, row: Row, defaults: RowDefaults) -> Prompt:
    """The ids of a row, as `run` makes them of its prompt.

    Errors: `PromptTooLong`, also for a conversation of which something would be left out;
    `NoTokenizer`, `UsageError`, `ModelError`.
    """
    request = _request(engine, row, defaults)
    if request is not None:
        prompt = encode(engine, request)
        if prompt.dropped:
            raise PromptTooLong(
                f"the messages and an answer do not fit into a context of {engine.plan.context}"
                " tokens; shorten them, or give a larger --ctx-size"
            )
    else:
        text = row.prompt
        ids = engine.tokenizer.encode(text) if isinstance(text, str) else list(text)
        prompt = Prompt(ids, [], row.stop, 0)
    engine.info.check_prompt(prompt.ids, engine.plan.context)
    return prompt


def _request(engine: Engine, row: Row, defaults: RowDefaults) -> Request | None:
    """The conversation that a row asks for; None for a text or ids to be continued."""
    if row.messages:
        return Request.of(row.messages, row.max_tokens, row.stop)
    is_message = isinstance(row.prompt, str) and answers_messages(
        engine, raw=row.raw, is_conversation=bool(defaults.system)
    )
    if not is_message:
        return None
    messages = [{"role": "user", "content": str(row.prompt)}]
    return Request(messages, defaults.system, max_tokens=row.max_tokens, stop=row.stop)


def failure_of(row: Row, error: FlashllmError) -> RowFailure:
    """The failure of a row that an error belongs to; raises it if the whole batch has to end."""
    if not isinstance(error, _OF_THE_MODEL):
        for kind, code in _CODES:
            if isinstance(error, kind):
                return RowFailure.of(row.line, row.id, BatchRowError(code, str(error)))
    raise error
