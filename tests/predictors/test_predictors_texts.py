"""Calibration texts: what is read, and what is refused with a message that helps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from flashllm.predictors.calibration_texts import (
    CONTEXTS_MIN,
    TOKENS_MAX,
    ContextLimits,
    ConversationEncoder,
    check_calibration,
    find_calibration,
    read_contexts,
    read_text,
)
from flashllm.predictors.split import split_contexts

from flashllm.errors import UsageError
from flashllm.progress import SilentProgress

BOS, USER, ASSISTANT, END = 1, 2, 3, 4
LIMITS = ContextLimits(vocab_size=300, max_positions=128, tokens_max=50_000, bos_id=BOS)


class ByteTokenizer:
    """Letters are ids from 10 on; a conversation is `<bos> <user> u <assistant> a <end> ...`."""

    def encode(self, text):
        return [BOS, *self.letters(text)]

    def encode_chat(self, messages):
        ids = [BOS]
        for message in messages:
            user = message["role"] == "user"
            letters = self.letters(message["content"])
            ids += [USER, *letters] if user else [ASSISTANT, *letters, END]
        return [*ids, ASSISTANT]

    def letters(self, text):
        return [10 + byte for byte in text.encode()]


class Warnings(SilentProgress):
    """Keeps what was warned of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text):
        self.texts.append(text)


def read(path, *, tokenizer=None, limits=LIMITS, seed=0, progress=None):
    tokenizer = tokenizer or ByteTokenizer()
    return read_contexts(path, tokenizer, limits, seed, progress or SilentProgress())


def conversation(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def write_lines(path: Path, lines) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_conversation_ends_with_its_last_answer():
    tokenizer = ByteTokenizer()
    talks = ConversationEncoder(tokenizer)
    for contents in (("ab", "cd", "e", "f"), ("same", "same"), ("x", "y")):
        whole = talks.encode(conversation(*contents))
        assert tokenizer.encode_chat(conversation(*contents)) == [*whole, ASSISTANT]
    assert talks.encode(conversation("ab"))[-1] == ASSISTANT


def test_conversations_are_contexts_in_a_seeded_order(tmp_path):
    talks = [conversation(f"what is {n}", "a number " * 5) for n in range(50)]
    talks[1] = {"messages": talks[1]}
    path = write_lines(tmp_path / "c.jsonl", map(json.dumps, talks))
    contexts = read(path)
    assert len(contexts) == 50
    expected = [
        ConversationEncoder(ByteTokenizer()).encode(t["messages"] if isinstance(t, dict) else t)
        for t in talks
    ]
    assert sorted(contexts) == sorted(expected)
    assert contexts == read(path)
    assert contexts != read(path, seed=1)


def test_plain_text_is_cut_into_contexts_that_begin_with_bos(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("é" * 5_000, encoding="utf-8")
    contexts = read(path)
    assert all(context[0] == BOS and len(context) <= LIMITS.max_positions for context in contexts)
    assert sum(len(context) - 1 for context in contexts) == 10_000


def test_a_short_text_still_makes_contexts_to_hold_out(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("x" * 1_200)
    contexts = read(path, limits=ContextLimits(300, 2_048, 50_000, BOS))
    assert len(contexts) >= CONTEXTS_MIN


def test_token_ids_need_no_tokenizer(tmp_path):
    lines = [" ".join(str((7 * n + i) % 300) for i in range(60)) for n in range(40)]
    path = write_lines(tmp_path / "t.ids", lines)
    contexts = read_contexts(path, None, LIMITS, 0, SilentProgress())
    assert sorted(contexts) == sorted([int(word) for word in line.split()] for line in lines)


def test_no_more_tokens_than_asked_for(tmp_path):
    lines = [" ".join(["5"] * 100)] * 100
    path = write_lines(tmp_path / "t.ids", lines)
    contexts = read(path, limits=ContextLimits(300, 128, 2_050, BOS))
    assert sum(map(len, contexts)) == 2_050


class WordTokenizer(ByteTokenizer):
    """Ten letters a token, as in text of long words."""

    def letters(self, text):
        return [5] * (len(text) // 10)


def test_no_fewer_tokens_than_asked_for_where_the_text_has_them(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("x" * 200_000)
    for tokens in (2_050, 19_999):
        contexts = read(path, tokenizer=WordTokenizer(), limits=ContextLimits(300, 128, tokens))
        assert sum(map(len, contexts)) == tokens
    whole = read(path, tokenizer=WordTokenizer(), limits=ContextLimits(300, 128, 50_000))
    assert sum(map(len, whole)) == 20_001


def test_of_a_long_text_the_beginning_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("flashllm.predictors.calibration_texts.TEXT_BYTES_MAX", 1_001)
    path = tmp_path / "t.txt"
    for content, used in (("é" * 800, "é" * 500), ("ab\n" * 400, "ab\n" * 333)):
        path.write_text(content, encoding="utf-8")
        assert read_text(path, SilentProgress()) == (used.encode(), used)


def test_by_default_three_hundred_thousand_tokens_train():
    lengths = [512] * (TOKENS_MAX // 512) + [TOKENS_MAX % 512]
    assert len(split_contexts(lengths).train) >= 300_000
    assert sum(lengths) == TOKENS_MAX


def test_few_tokens_are_warned_of(tmp_path):
    progress = Warnings()
    read(write_lines(tmp_path / "t.ids", [" ".join(["5"] * 100)] * 20), progress=progress)
    assert "2,000 tokens" in progress.texts[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", b"", "empty"),
        ("t.jsonl", b"\n \n", "empty"),
        ("t.ids", b"", "empty"),
        ("t.txt", b"a few words", "too few"),
        ("t.txt", b"good\xff\xfebad" * 500, r"not UTF-8 text \(byte 4\)"),
        ("t.jsonl", b"[1, 2\n", "line 1: not JSON"),
        ("t.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("t.jsonl", b'{"text": "x"}\n', "line 1: expected a list of messages"),
        ("t.jsonl", b'[{"role": "robot", "content": "x"}]', "role is none of"),
        ("t.jsonl", b'[{"role": "user", "content": 5}]', "content is no text"),
        ("t.ids", b"1 2 3\n4 five", "line 2: expected token ids"),
        ("t.ids", b"1 -2 3", "line 1: expected token ids"),
        ("t.ids", b"1 300", "line 1: a token id beyond the vocabulary of 300"),
        ("t.ids", b"1 99999999999999999999999", "line 1: a token id beyond"),
    ],
)
def test_bad_texts_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    # Just as well before there is a model whose tokenizer could read it.
    with pytest.raises(UsageError, match=message) as caught:
        check_calibration(path, LIMITS.vocab_size, has_tokenizer=True)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "tokens"),
    [
        ("t.ids", "1 2 3 4 5\n\n6 7 8 9 299\n" * 100, 1_000),
        ("t.txt", "some words\n" * 300, 1_100),
        ("t.jsonl", json.dumps(conversation("ab", "cd")), 25),
    ],
    ids=["ids", "text", "conversations"],
)
def test_good_texts_pass_and_are_counted(tmp_path, name, content, tokens):
    path = tmp_path / name
    path.write_text(content)
    assert check_calibration(path, LIMITS.vocab_size, has_tokenizer=True) == tokens
    if name == "t.ids":
        assert check_calibration(path, LIMITS.vocab_size, has_tokenizer=False) == tokens
        path.write_text(content[2:])
        with pytest.raises(UsageError, match="999 tokens are too few"):
            check_calibration(path, LIMITS.vocab_size, has_tokenizer=False)


def test_a_text_without_a_tokenizer_is_refused(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("word " * 1_000)
    with pytest.raises(UsageError, match=r"no tokenizer; give token ids in a \.ids file"):
        read_contexts(path, None, LIMITS, 0, SilentProgress())
    with pytest.raises(UsageError, match=r"no tokenizer; give token ids in a \.ids file"):
        check_calibration(path, LIMITS.vocab_size, has_tokenizer=False)


def test_the_text_is_looked_for_in_and_beside_the_model(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(UsageError, match="--calibration FILE"):
        find_calibration(model, None)
    (tmp_path / "calibration.ids").touch()
    assert find_calibration(model, None) == tmp_path / "calibration.ids"
    (model / "calibration.jsonl").touch()
    assert find_calibration(model, None) == model / "calibration.jsonl"
    assert find_calibration(model, tmp_path / "calibration.ids").suffix == ".ids"
    with pytest.raises(UsageError, match="no such file"):
        find_calibration(model, tmp_path / "other.txt")
    os.mkfifo(tmp_path / "fifo")
    for path in (model, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(UsageError, match="is not a file"):
            find_calibration(model, path)
