"""Rows of OpenAI's batch files: `{"custom_id", "method", "url", "body"}`.

A parameter that would change an answer, and that nobody here knows, is refused; one that changes
nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashllm.batch.row import (
    SAMPLING_KEYS,
    Row,
    RowDefaults,
    RowId,
    check_keys,
    invalid,
    make_row,
)
from flashllm.errors import BatchRowError

ROW_KEYS = ("custom_id", "method", "url", "body")
CHAT_URL, TEXT_URL = "/v1/chat/completions", "/v1/completions"
_PROMPT_KEYS = {CHAT_URL: "messages", TEXT_URL: "prompt"}
_TOKENS_KEYS = ("max_completion_tokens", "max_tokens")
_IGNORED_KEYS = (
    "metadata", "model", "parallel_tool_calls", "prompt_cache_key", "safety_identifier",
    "service_tier", "store", "user",
)  # fmt: skip
_WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "n": (1,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "stream": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Parameters that are not supported -> the values with which they change nothing."""


def openai_row(values: Mapping[str, Any], line: int, id_: RowId, defaults: RowDefaults) -> Row:
    """The row that an object of such a file spells; `BatchRowError`."""
    check_keys(values, ROW_KEYS)
    if values.get("method", "POST") != "POST":
        raise invalid("method", values["method"], "POST")
    url, body = values.get("url"), values.get("body")
    if url not in (CHAT_URL, TEXT_URL):
        raise invalid("url", url, f"{CHAT_URL} or {TEXT_URL}")
    if not isinstance(body, dict):
        raise invalid("body", body, "an object")
    given = {key: value for key, value in body.items() if value is not None}
    prompt_key = _PROMPT_KEYS[url]
    known = (prompt_key, *_TOKENS_KEYS, *SAMPLING_KEYS, "stop")
    check_keys(given, (*known, *_IGNORED_KEYS, *_WITHOUT_EFFECT), "body.")
    for key, harmless in _WITHOUT_EFFECT.items():
        if key in given and given[key] not in harmless:
            raise BatchRowError("unsupported", f"body.{key} is not supported; leave it out")
    if prompt_key not in given:
        raise BatchRowError("missing_key", f"body has no {prompt_key}, which {url} needs")
    if url == CHAT_URL:
        given["messages"] = _plain_messages(given["messages"])
    given["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens"))
    return make_row(given, line, id_, defaults, raw=True)


def _plain_messages(messages: object) -> object:
    """Messages whose contents are texts; what is no message is left for others to refuse."""
    if not isinstance(messages, list):
        return messages
    return [_plain_message(each) if isinstance(each, dict) else each for each in messages]


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(part) for part in content)
    return {"role": "system" if role == "developer" else role, "content": content}


def _text_of(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise BatchRowError("unsupported", "messages: a part of a content is no text")
    return text
