"""Lines of both formats as rows, and what is wrong with a line as its answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flashllm.batch.row import Row, RowDefaults, RowFailure, row_seed
from flashllm.batch.row_line import ROW_BYTES_MAX, VALUES_MAX, form_of, read_row
from flashllm.engine.sampling import Sampling

DEFAULTS = RowDefaults(max_tokens=7, sampling=Sampling(temperature=0.5, seed=3), stop=("END",))
ASKED = [{"role": "user", "content": "hi"}]


def row(**values: Any) -> Row:
    found = read_row(json.dumps(values).encode(), 4, "rows", DEFAULTS)
    assert isinstance(found, Row), found
    return found


def openai(body: dict[str, Any], url: str = "/v1/chat/completions", **more: Any) -> Any:
    values = {"custom_id": "a", "method": "POST", "url": url, "body": body, **more}
    return read_row(json.dumps(values).encode(), 4, "openai", DEFAULTS)


def failure(line: bytes | None, form: Any = "rows") -> RowFailure:
    found = read_row(line, 4, form, DEFAULTS)
    assert isinstance(found, RowFailure), found
    assert found.line == 4
    assert len(found.message) < 400
    return found


def test_a_row_that_says_nothing_has_the_defaults() -> None:
    seeded = replace(DEFAULTS.sampling, seed=row_seed(3, 4))
    assert row(prompt="hi") == Row(4, 4, "hi", (), False, 7, seeded, ("END",))
    assert row(prompt="hi", max_tokens=None, stop=None, seed=None) == row(prompt="hi")


def test_a_row_says_how_it_is_answered() -> None:
    found = row(
        id="x", messages=ASKED, max_tokens=2, temperature=1, top_p=0.5, top_k=3, min_p=0.25,
        repetition_penalty=1.5, seed=8, stop="\n",
    )  # fmt: skip
    assert (found.id, found.messages, found.prompt, found.max_tokens) == ("x", (ASKED[0],), "", 2)
    assert found.sampling == Sampling(1.0, 3, 0.5, 0.25, 1.5, 8)
    assert found.stop == ("\n",)
    assert row(prompt=[1, 2], stop=["a", "b"], id=7).prompt == (1, 2)


def test_a_seed_follows_from_the_id_and_from_nothing_else() -> None:
    assert row_seed(3, "a") != row_seed(3, "b") != row_seed(4, "b")
    assert row(prompt="x", id="a").sampling.seed == row(prompt="y", id="a").sampling.seed
    assert 0 <= row_seed(1 << 63, "a") < 1 << 53  # whole in programs whose numbers are floats


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({}, "missing_key", "neither a prompt nor messages"),
        ({"id": 1, "prompt": None}, "missing_key", "neither a prompt nor messages"),
        ({"prompt": "a", "messages": ASKED}, "invalid_value", "give one of them"),
        ({"prompt": " \n"}, "invalid_value", "expected some text"),
        ({"prompt": 5}, "invalid_value", "a text, or a list of token ids"),
        ({"prompt": []}, "invalid_value", "a text, or a list of token ids"),
        ({"prompt": [1, True]}, "invalid_value", "a text, or a list of token ids"),
        ({"prompt": "a", "promt": 1}, "unknown_key", "did you mean prompt?"),
        ({"prompt": "a", "max_token": 1}, "unknown_key", "did you mean max_tokens?"),
        ({"prompt": "a", "qqq": 1}, "unknown_key", "known are id, prompt"),
        ({"prompt": "a", "max_tokens": -1}, "invalid_value", "max_tokens is -1"),
        ({"prompt": "a", "max_tokens": 0}, "invalid_value", "1 or more"),
        ({"prompt": "a", "max_tokens": 2.0}, "invalid_value", "a whole number"),
        ({"prompt": "a", "max_tokens": True}, "invalid_value", "a whole number"),
        ({"prompt": "a", "max_tokens": 1 << 31}, "invalid_value", "a whole number"),
        ({"prompt": "a", "temperature": -0.5}, "invalid_value", "temperature is -0.5"),
        ({"prompt": "a", "temperature": "hot"}, "invalid_value", "expected a number"),
        ({"prompt": "a", "temperature": 10**400}, "invalid_value", "a smaller number"),
        ({"prompt": "a", "temperature": False}, "invalid_value", "expected a number"),
        ({"prompt": "a", "top_p": 0}, "invalid_value", "above 0, at most 1"),
        ({"prompt": "a", "top_k": 1.5}, "invalid_value", "a whole number"),
        ({"prompt": "a", "seed": -1}, "invalid_value", "below 2**64"),
        ({"prompt": "a", "stop": ""}, "invalid_value", "not empty"),
        ({"prompt": "a", "stop": ["a", 1]}, "invalid_value", "not empty"),
        ({"prompt": "a", "stop": {"a": 1}}, "invalid_value", "a list of at most 64 texts"),
        ({"prompt": "a", "stop": ["a"] * 65}, "invalid_value", "a list of at most 64 texts"),
        ({"messages": "hi"}, "invalid_value", "a list like"),
        ({"messages": []}, "invalid_value", "nothing to answer"),
        ({"messages": ["hi"]}, "invalid_value", "a mapping with role and content"),
        ({"messages": [{"role": "tool", "content": ""}]}, "invalid_value", "unknown role"),
        ({"messages": [{"role": "user"}]}, "invalid_value", "has no content"),
        ({"prompt": "a", "id": 1.5}, "invalid_value", "id is 1.5"),
        ({"prompt": "a", "id": "i" * 1001}, "invalid_value", "at most 1000 characters"),
        ({"prompt": "a", "id": True}, "invalid_value", "id is True"),
        ({"custom_id": "a", "body": {}}, "mixed_formats", "not of the format"),
    ],
)
def test_what_is_wrong_with_a_row(values: dict[str, Any], code: str, words: str) -> None:
    found = failure(json.dumps(values).encode())
    assert (found.code, words in found.message) == (code, True), found


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nope", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b"\xff{}", "invalid_json"),
        (b'{"prompt": "a", "prompt": "b"}', "invalid_json"),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_json"),
        (b'{"prompt": "a", "temperature": 1e999}', "invalid_value"),
        (b'{"prompt": "a"', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}", "invalid_json"),
        (b'{"prompt": [' + b"1," * (VALUES_MAX + 1) + b"1]}", "invalid_json"),
        (None, "row_too_long"),
    ],
    ids=[
        "word",
        "list",
        "bytes",
        "twice",
        "nan",
        "infinite",
        "half",
        "deep",
        "digits",
        "many",
        "long",
    ],
)
def test_what_is_no_row_at_all(line: bytes | None, code: str) -> None:
    assert failure(line).code == code
    assert failure(line).id == 4  # the number of the line
    assert ROW_BYTES_MAX >= 1 << 24


def test_a_mark_of_byte_order_is_no_error() -> None:
    assert isinstance(read_row(b"\xef\xbb\xbf" + b'{"prompt": "a"}', 1, "rows", DEFAULTS), Row)


def test_the_form_is_that_of_the_first_object() -> None:
    assert form_of(b"nope") is None
    assert form_of(b'{"prompt": "a"}') == "rows"
    assert form_of(b'{"custom_id": "a"}') == form_of(b'{"body": {}}') == "openai"


def test_openai_conversations_and_prompts() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    body = {
        "model": "other", "user": "u", "n": 1, "stream": False, "temperature": 0,
        "frequency_penalty": 0.0, "logprobs": None, "response_format": {"type": "text"},
        "max_tokens": 9, "max_completion_tokens": 5, "stop": ["x"], "seed": 2,
        "messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}],
    }  # fmt: skip
    found = openai(body)
    system = {"role": "system", "content": "s"}
    assert found == Row(4, "a", "", (system, ASKED[0]), True, 5, Sampling(seed=2), ("x",))
    found = openai({"prompt": "The sea is", "max_tokens": 9}, "/v1/completions")
    assert (found.prompt, found.raw, found.max_tokens) == ("The sea is", True, 9)


@pytest.mark.parametrize(
    ("body", "more", "code", "words"),
    [
        ({}, {}, "missing_key", "body has no messages"),
        ({"prompt": "a"}, {}, "unknown_key", "body.'prompt'"),
        ({"messages": ASKED}, {"url": "/v1/embeddings"}, "invalid_value", "/v1/completions"),
        ({"messages": ASKED}, {"method": "GET"}, "invalid_value", "expected POST"),
        ({"messages": ASKED}, {"body": []}, "invalid_value", "an object"),
        ({"messages": ASKED}, {"extra": 1}, "unknown_key", "'extra'"),
        ({"messages": ASKED}, {"custom_id": None}, "missing_key", "no custom_id"),
        ({"messages": ASKED, "n": 2}, {}, "unsupported", "body.n is not supported"),
        ({"messages": ASKED, "stream": True}, {}, "unsupported", "body.stream"),
        ({"messages": ASKED, "tools": [{}]}, {}, "unsupported", "body.tools"),
        ({"messages": ASKED, "max_tokns": 1}, {}, "unknown_key", "did you mean max_tokens?"),
        ({"messages": ASKED, "max_tokens": -1}, {}, "invalid_value", "1 or more"),
        ({"messages": "hi"}, {}, "invalid_value", "a list like"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            {}, "unsupported", "no text",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_row_of_openai(
    body: dict[str, Any], more: dict[str, Any], code: str, words: str
) -> None:
    found = openai(**{"body": body, **more})
    assert isinstance(found, RowFailure)
    assert (found.code, words in found.message) == (code, True), found
    assert found.id == (None if "custom_id" in more else "a")


def test_a_row_of_ours_among_those_of_openai() -> None:
    assert failure(b'{"id": "a", "prompt": "b"}', "openai").code == "mixed_formats"
