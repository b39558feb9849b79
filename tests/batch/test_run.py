"""From rows to answers on a scripted engine: requests, errors of a row, errors that end it all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashllm.batch.encoded_row import encode_row
from flashllm.batch.output import StreamOutput
from flashllm.batch.row import Row, RowDefaults, row_seed
from flashllm.batch.row_by_row import RowByRow
from flashllm.batch.run import BatchRun
from flashllm.engine.sampling import Sampling
from flashllm.errors import (
    ChecksumMismatch,
    FlashllmError,
    ModelError,
    OutOfMemory,
    PromptTooLong,
    ReadFailed,
    UsageError,
)
from flashllm.telemetry.costs import decode_summary, merged_summary
from tests.batch.batches import (
    DEFAULTS,
    answers,
    lines_of,
    open_rows,
    run,
    write_rows,
)
from tests.support.costs import cost
from tests.support.fake_engine import FakeModel, FakeTokenizer

ASKED = ({"role": "user", "content": "hi there"},)


class PlainTokenizer(FakeTokenizer):
    has_chat_template = False


def row(prompt: Any = "", messages: Any = (), *, raw: bool = False) -> Row:
    return Row(1, 1, prompt, messages, raw, 9, Sampling(), ("END",))


def test_a_prompt_is_a_message_where_run_takes_it_for_one() -> None:
    chat, plain = FakeModel(["x"]), FakeModel(["x"], tokenizer=PlainTokenizer())
    said = RowDefaults(system="be short")
    for model, defaults, is_raw, expected in [
        (chat, DEFAULTS, False, [{"role": "user", "content": "hi there"}]),
        (chat, DEFAULTS, True, None),
        (plain, DEFAULTS, False, None),
        (plain, said, False, [{"role": "system", "content": "be short"}, ASKED[0]]),
        (plain, said, True, None),
    ]:
        before = len(model.tokenizer.conversations)
        prompt = encode_row(model, row("hi there", raw=is_raw), defaults)
        asked = model.tokenizer.conversations[before:]
        assert asked == ([] if expected is None else [expected])
        if expected is None:
            assert prompt.ids == model.tokenizer.encode("hi there")
        assert prompt.stop == ("END",)


def test_messages_bring_their_own_system_prompt_and_may_end_in_half_an_answer() -> None:
    model = FakeModel(["x"])
    half = {"role": "assistant", "content": "so far"}
    prompt = encode_row(model, row(messages=(*ASKED, half)), RowDefaults(system="be short"))
    assert model.tokenizer.conversations == [list(ASKED)]
    assert prompt.begun == model.tokenizer.encode("so far")
    assert encode_row(model, row((1, 2, 3)), DEFAULTS).ids == [1, 2, 3]


def test_what_is_longer_than_the_context_is_left_out_by_nobody() -> None:
    model = FakeModel(["x"], context=8)
    turns = [{"role": role, "content": "a b"} for role in ("user", "assistant", "user")]
    for too_long in (row("a " * 9), row("a " * 9, raw=True), row(messages=tuple(turns))):
        with pytest.raises(PromptTooLong):
            encode_row(model, too_long, DEFAULTS)
    with pytest.raises(UsageError, match="outside the vocabulary"):
        encode_row(model, row((1 << 20,)), DEFAULTS)


def test_settings_of_a_row_reach_the_engine(tmp_path: Path) -> None:
    model = FakeModel(["x"])
    lines = [
        '{"prompt": "a", "temperature": 0.5, "max_tokens": 3}',
        '{"prompt": [4, 5], "stop": "c"}',
    ]
    write_rows(tmp_path, lines)
    run(tmp_path, model=model)
    first, second = model.requests
    assert first["sampling"] == Sampling(0.5, seed=row_seed(0, 1))
    assert (first["max_tokens"], second["ids"], second["stop"]) == (3, [4, 5], ("c",))
    assert [line.get("seed") for line in lines_of(tmp_path)] == [row_seed(0, 1), None]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("the template refuses it"), "invalid_request"),
        (ModelError("logits are NaN"), "model_error"),
        (PromptTooLong("too long"), "context_length_exceeded"),
    ],
)
def test_an_error_of_one_row_is_its_answer(tmp_path: Path, error: Exception, code: str) -> None:
    write_rows(tmp_path, ['{"prompt": "a"}'] * 3)
    summary = run(tmp_path, model=FakeModel(["x"], [error], ["y"]))
    assert (summary.answered, summary.errors) == (2, 1)
    assert lines_of(tmp_path)[1] == {
        "id": 2, "line": 2, "error": {"code": code, "message": str(error)}
    }  # fmt: skip


def test_text_for_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    write_rows(tmp_path, ['{"prompt": "a"}', '{"prompt": [7]}'])
    model = FakeModel(["x"])
    model.has_tokenizer = False
    run(tmp_path, model=model)
    failed, answered = lines_of(tmp_path)
    assert failed["error"]["code"] == "no_tokenizer"
    assert answered["tokens"] == [0]


@pytest.mark.parametrize(
    "error", [ReadFailed("disk"), ChecksumMismatch("weights"), OutOfMemory("memory")]
)
def test_an_error_that_all_rows_would_have_ends_the_batch(
    tmp_path: Path, error: FlashllmError
) -> None:
    write_rows(tmp_path, ['{"prompt": "a"}'] * 3)
    with pytest.raises(type(error)):
        run(tmp_path, model=FakeModel(["x"], [error]))
    assert [line["line"] for line in lines_of(tmp_path)] == [1]
    summary = run(tmp_path)
    assert (summary.answered, summary.errors, summary.resumed) == (3, 0, 1)


def test_a_row_that_is_stopped_half_way_is_answered_again(tmp_path: Path) -> None:
    write_rows(tmp_path, ['{"prompt": "a"}'] * 3)
    model = FakeModel(["x"])
    model._answers = [["word ", "word"], ["half ", lambda: model.cancelled.set(), "never"]]
    summary = run(tmp_path, model=model)
    assert (summary.answered, summary.is_complete) == (1, False)
    kept = answers(tmp_path)
    assert b"half" not in kept
    assert run(tmp_path).is_complete
    assert answers(tmp_path).startswith(kept)


def test_openai_lines_are_as_openai_writes_them(tmp_path: Path) -> None:
    chat = {"messages": list(ASKED), "max_tokens": 1}
    text = {"prompt": "a"}
    lines = [
        {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "t", "method": "POST", "url": "/v1/completions", "body": text},
        {"custom_id": "n", "url": "/v1/completions", "body": {**text, "n": 3}},
    ]
    write_rows(tmp_path, map(json.dumps, lines))
    run(tmp_path)
    first, second, third = lines_of(tmp_path)
    assert (first["id"], first["custom_id"], first["error"]) == ("batch_req_1", "c", None)
    response = first["response"]
    assert (response["status_code"], response["request_id"]) == (200, "req_1")
    created = response["body"].pop("created")
    assert isinstance(created, int)
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    message = {"role": "assistant", "content": "word "}
    assert response["body"] == {
        "id": "chatcmpl-1", "object": "chat.completion", "model": "fake", "usage": usage,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
    }  # fmt: skip
    body = second["response"]["body"]
    assert (body["object"], body["created"]) == ("text_completion", created)
    assert body["choices"][0]["text"] == "word word"
    assert (third["response"], third["error"]["code"]) == (None, "unsupported")


def test_a_stream_has_the_order_of_the_rows_too(tmp_path: Path) -> None:
    written: list[str] = []
    with open_rows(write_rows(tmp_path)) as rows:
        with StreamOutput(written.append, len(rows)) as output:
            for number in (2, 4, 0, 1, 3):
                output.order.write(number, f"{number}\n".encode(), is_failure=False)
        assert written == ["0\n", "1\n", "2\n", "3\n", "4\n"]
        with StreamOutput(written.append, len(rows)) as output:
            model = FakeModel(["word ", "word"])
            schedule = RowByRow(model, model.cancelled.is_set, lambda: None)
            batch = BatchRun(model, rows, DEFAULTS, output, lambda: False, lambda: None)
            assert batch.answer(schedule).answered == 3
    assert [json.loads(line)["line"] for line in written[5:]] == [1, 2, 3, 4, 5]


def test_sums_of_two_answers_are_those_of_their_tokens() -> None:
    sizes = [(0, 0, 5), (1, 2, 0), (0, 0, 9)]
    first, second, third = (cost(size_histogram=each) for each in sizes)
    second = replace(second, hits=5, misses=3, depth_max=40)
    third = replace(third, wall_ns=7, io_busy_ns=0, depth_ns=0, bytes_read=0)
    merged = merged_summary(decode_summary([first, second]), decode_summary([third]))
    expected = decode_summary([first, second, third])
    assert merged.pop("queue_depth_mean") == pytest.approx(expected.pop("queue_depth_mean"))
    assert merged == expected
    assert merged_summary(decode_summary([]), expected | {"queue_depth_mean": 2.0}) == (
        expected | {"queue_depth_mean": 2.0}
    )
