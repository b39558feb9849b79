"""Answers of a batch as lines of JSON, and what of them is read again when a batch goes on.

Nothing in a line depends on when or how it was computed, so that a file of answers is the same
whatever interrupted the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashllm.batch.row import Row, RowFailure, RowForm
from flashllm.untrusted.strict_json import loads_strict

_OPENAI_FINISH = {"context": "length"}
"""Our finish reasons that OpenAI's format has no word for."""
_OPENAI_ID = re.compile(r"batch_req_([0-9]{1,15})")


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """A row that was answered."""

    row: Row
    tokens: Sequence[int]
    text: str
    finish_reason: str
    prompt_tokens: int
    has_text: bool = True
    """False for a model without a tokenizer, whose answers have only ids."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How lines are written, the same for all of a file."""

    form: RowForm
    model: str
    created: int
    """Seconds since 1970 at which the batch began: what OpenAI's format wants of each answer."""

    def line(self, result: RowAnswer | RowFailure) -> bytes:
        """The line of a row, its end included."""
        make = _openai_line if self.form == "openai" else _own_line
        text = json.dumps(make(self, result), ensure_ascii=False)
        # Half a character (a lone surrogate, in an id) has no UTF-8; its escape is JSON.
        return text.encode("utf-8", "backslashreplace") + b"\n"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What a file of answers says of a row: its line in the file of rows, and whether it failed."""

    line: int
    is_failure: bool


def read_answer(raw: bytes, form: RowForm) -> KeptAnswer | None:
    """What a line of a file of answers says; None where it is none of ours, or not whole."""
    try:
        values = loads_strict(raw)
    except (ValueError, RecursionError):
        return None
    if not raw.endswith(b"\n") or not isinstance(values, dict):
        return None
    line, keys = values.get("line"), {"error", "finish_reason"}
    if form == "openai":
        match = _OPENAI_ID.fullmatch(str(values.get("id")))
        line, keys = int(match[1]) if match else None, {"custom_id"}
    if type(line) is not int or not keys & values.keys():
        return None
    return KeptAnswer(line, values.get("error") is not None)


def _own_line(_: AnswerForm, result: RowAnswer | RowFailure) -> dict[str, Any]:
    if isinstance(result, RowFailure):
        return {"id": result.id, "line": result.line, "error": _error(result)}
    row = result.row
    content = _message(result) if row.messages else result.text
    return {
        "id": row.id,
        "line": row.line,
        "message" if row.messages else "text": content,
        **({} if result.has_text else {"tokens": list(result.tokens)}),
        "finish_reason": result.finish_reason,
        "usage": _usage(result),
        **({"seed": row.sampling.seed} if row.sampling.temperature else {}),
    }


def _openai_line(form: AnswerForm, result: RowAnswer | RowFailure) -> dict[str, Any]:
    row = result if isinstance(result, RowFailure) else result.row
    ids = {"id": f"batch_req_{row.line}", "custom_id": row.id}
    if isinstance(result, RowFailure):
        return {**ids, "response": None, "error": _error(result)}
    body = _openai_body(form, result)
    response = {"status_code": 200, "request_id": f"req_{row.line}", "body": body}
    return {**ids, "response": response, "error": None}


def _openai_body(form: AnswerForm, answer: RowAnswer) -> dict[str, Any]:
    is_chat = bool(answer.row.messages)
    content = {"message": _message(answer)} if is_chat else {"text": answer.text}
    finish = _OPENAI_FINISH.get(answer.finish_reason, answer.finish_reason)
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{answer.row.line}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": form.created,
        "model": form.model,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": finish}],
        "usage": _usage(answer),
    }


def _message(answer: RowAnswer) -> dict[str, str]:
    return {"role": "assistant", "content": answer.text}


def _usage(answer: RowAnswer) -> dict[str, int]:
    completion = len(answer.tokens)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": answer.prompt_tokens + completion,
    }


def _error(failure: RowFailure) -> dict[str, str]:
    return {"code": failure.code, "message": failure.message}
