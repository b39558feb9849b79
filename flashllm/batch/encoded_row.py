"""Rows as an engine takes them, and what becomes of a row that it does not take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    from flashllm.engine.protocol import GenerateOptions, PromptModel

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

    def options(self) -> GenerateOptions:
        """How it is answered, as keywords of `generate`."""
        row, prompt = self.row, self.prompt
        return {
            "max_tokens": row.max_tokens,
            "sampling": row.sampling,
            "stop": prompt.stop,
            "answer": len(prompt.begun),
            "reuse_answers": False,  # those of other rows
        }


def encode_row(engine: PromptModel, row: Row, defaults: RowDefaults) -> Prompt:
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


def _request(engine: PromptModel, row: Row, defaults: RowDefaults) -> Request | None:
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
