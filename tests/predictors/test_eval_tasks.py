"""Questions scored by eval: by hand on a decoder of a few numbers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flashllm.predictors.calibration_texts import ConversationEncoder
from flashllm.predictors.evaluation import EvaluatedModel, TaskSettings, evaluate_tasks
from flashllm.predictors.evaluation.answers import normalised
from flashllm.predictors.evaluation.choices import encode_choices, log_likelihood

from flashllm.errors import UsageError
from flashllm.progress import SilentProgress

from .test_predictors_texts import ASSISTANT, BOS, END, USER, ByteTokenizer

VOCAB = 300


class TableDecoder:
    """Logits that follow from the last token alone, by a table; selected ones by another."""

    def __init__(self, context: int = 64, selects: str = "predicted") -> None:
        generator = np.random.default_rng(2)
        self.tables = {
            "dense": generator.normal(size=(VOCAB, VOCAB)).astype(np.float32),
            "selected": generator.normal(size=(VOCAB, VOCAB)).astype(np.float32),
        }
        self.context_tokens, self.selects = context, selects
        self.spec = SimpleNamespace(sparse=True, vocab_size=VOCAB)

    def logits_blocks(self, ids, mode="dense", tap=None, chosen=None):
        for start in range(0, len(ids), 5):
            yield self.tables[mode][np.asarray(ids[start : start + 5])]

    def log(self, mode, ids, given):
        """Log-likelihood by hand."""
        total = 0.0
        for before, after in zip(ids[given - 1 :], ids[given:], strict=False):
            row = self.tables[mode][before].astype(np.float64)
            total += row[after] - np.log(np.exp(row).sum())
        return total


def evaluated(decoder, tokenizer=None):
    tokenizer = tokenizer or ByteTokenizer()
    return EvaluatedModel(Path("model"), "model", 4096, {}, decoder, tokenizer)


def ask(path, decoder, *lines, **settings):
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return evaluate_tasks(evaluated(decoder), path, TaskSettings(**settings), SilentProgress())


def letters(text):
    return [10 + byte for byte in text.encode()]


def test_the_likeliest_choice_by_hand(tmp_path):
    decoder = TableDecoder()
    questions = [
        {"query": f"q{n}", "choices": ["ab", "é and more", " c"], "answer": n % 3}
        for n in range(12)
    ]
    found = ask(tmp_path / "t.jsonl", decoder, *questions)["multiple_choice"]
    assert found["questions"] == 12
    for name, mode in (("dense", "dense"), ("predicted", "selected")):
        right, right_norm = [], []
        for question in questions:
            joined = ("ab", "é and more", "c")  # one space before each, theirs or ours
            given = [BOS, *letters(question["query"])]
            logs = [
                decoder.log(mode, [*given, *letters(" " + choice)], len(given)) for choice in joined
            ]
            right.append(int(np.argmax(logs)) == question["answer"])
            byte_lengths = [len(choice.encode()) for choice in question["choices"]]
            right_norm.append(int(np.argmax(np.divide(logs, byte_lengths))) == question["answer"])
        assert found["measures"]["acc"][name]["right"] == pytest.approx(np.mean(right))
        assert found["measures"]["acc_norm"][name]["right"] == pytest.approx(np.mean(right_norm))


def test_log_likelihoods_are_of_what_is_not_given():
    decoder = TableDecoder()
    ids = [BOS, *letters("a question and its answer")]
    for given in (1, 5, 6, len(ids) - 1):
        expected = decoder.log("dense", ids, given)
        assert log_likelihood(decoder, ids, given, "dense") == pytest.approx(expected, abs=1e-4)


def test_a_conversations_choice_is_its_answer():
    tokenizer = ByteTokenizer()
    talks = ConversationEncoder(tokenizer)
    encoded = encode_choices(tokenizer, talks, [{"role": "user", "content": "q"}], ("x", "xy"))
    prompt = [BOS, USER, *letters("q"), ASSISTANT]
    assert encoded.given == len(prompt)
    assert encoded.ids == ([*prompt, *letters("x"), END], [*prompt, *letters("xy"), END])


class MergingTokenizer(ByteTokenizer):
    """Takes " x" behind a query together with the letter before it."""

    def encode(self, text):
        ids = super().encode(text)
        merged = letters("q x")
        for start in range(len(ids)):
            if ids[start : start + 3] == merged:
                return [*ids[:start], 299, *ids[start + 3 :]]
        return ids


def test_all_choices_are_judged_on_the_same_given_tokens():
    """Where one choice merges with the end of the query, that end is scored for all of them."""
    tokenizer = MergingTokenizer()
    encoded = encode_choices(tokenizer, ConversationEncoder(tokenizer), "aq", ("x", "y"))
    assert encoded.given == 2
    assert encoded.ids == ([BOS, *letters("a"), 299], [BOS, *letters("aq y")])


def test_choices_of_a_model_that_reads_all_are_scored_once(tmp_path):
    question = {"query": "q", "choices": ["a", "b"], "answer": 0}
    found = ask(tmp_path / "t.jsonl", TableDecoder(selects="all"), question, question)
    assert set(found["multiple_choice"]["measures"]["acc"]) == {"dense"}


def test_a_limit_takes_questions_from_all_of_the_file(tmp_path):
    questions = [
        {"query": "q", "choices": ["a", "b"], "answer": 0, "intent": str(n // 50)}
        for n in range(100)
    ]
    found = ask(tmp_path / "t.jsonl", TableDecoder(), *questions, limit=10)
    groups = found["multiple_choice"]["groups"]
    assert (found["questions"], found["questions_in_file"]) == (10, 100)
    assert sorted(group["questions"] for group in groups.values()) == [4, 6]


GOOD = '{"query": "q", "choices": ["a", "b"], "answer": 0}'
SAID = '{"messages": [{"role": "user", "content": "x"}]'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected an object"),
        ('{"query": "q"}', "expected choices, or an expected answer"),
        ('{"query": "q", "choices": ["a"], "answer": 0}', "a list of 2 to 64 choices"),
        ('{"query": "q", "choices": "ab", "answer": 0}', "a list of 2 to 64 choices"),
        ('{"query": "q", "choices": ["a", 2], "answer": 0}', "a choice that is no text"),
        ('{"query": "q", "choices": ["a", " "], "answer": 0}', "a choice that is no text"),
        ('{"query": "q", "choices": ["a", "b"]}', "answer is None; .* 0 to 1"),
        ('{"query": "q", "choices": ["a", "b"], "answer": 2}', "answer is 2; .* 0 to 1"),
        ('{"query": "q", "choices": ["a", "b"], "answer": true}', "answer is True"),
        ('{"query": "q", "choices": ["a", "b"], "answer": -1}', "answer is -1"),
        ('{"query": " ", "choices": ["a", "b"], "answer": 0}', "the query is no text, or empty"),
        ('{"choices": ["a", "b"], "answer": 0}', "either a query or messages"),
        (SAID + ', "query": "q", "choices": ["a", "b"], "answer": 0}', "either a query or"),
        (SAID + ', "expected": " "}', "an expected answer as text"),
        (SAID + ', "expected": 5}', "an expected answer as text"),
        ('{"query": "q", "expected": "x"}', "needs messages"),
        ('{"messages": [], "expected": "x"}', "expected a list of messages"),
        ('{"messages": [5], "expected": "x"}', "role is none of"),
        ('{"messages": [{"role": "user"}], "expected": "x"}', "content is no text"),
        (SAID + ', "expected": "x", "intent": 5}', "intent is no text"),
        ('{"query": "%s", "choices": ["a", "b"], "answer": 0}' % ("q" * 80), "83 tokens, .* 64"),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path, line, message):
    path = tmp_path / "t.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=f"line 3: .*{message}"):
        evaluate_tasks(evaluated(TableDecoder()), path, TaskSettings(), SilentProgress())


def test_a_model_without_a_tokenizer_answers_nothing(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD)
    model = EvaluatedModel(Path("model"), "model", 4096, {}, TableDecoder(), None)
    with pytest.raises(UsageError, match="no tokenizer"):
        evaluate_tasks(model, path, TaskSettings(), SilentProgress())


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "empty"), (b"\xff\xfe", r"not UTF-8 text \(byte 0\)")]
)
def test_bad_files_are_refused(tmp_path, content, message):
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        evaluate_tasks(evaluated(TableDecoder()), path, TaskSettings(), SilentProgress())


def test_answers_are_compared_without_case_and_spaces():
    assert normalised(" Ocean (noun):  a large\nbody ") == normalised("ocean (noun): a large body")
    assert normalised("oceans") != normalised("ocean")


class ForgivingTokenizer(ByteTokenizer):
    """Takes what is no character for a question mark, as real ones take it for some other."""

    def letters(self, text):
        return super().letters(text.encode("utf-8", "replace").decode())


def test_half_a_character_in_a_choice_is_scored_as_another(tmp_path):
    path = tmp_path / "tasks.jsonl"
    line = {"query": "a", "choices": ["b\ud800", "c"], "answer": 0}  # legal in JSON's escapes
    path.write_text(json.dumps(line))
    model = evaluated(TableDecoder(), ForgivingTokenizer())
    report = evaluate_tasks(model, path, TaskSettings(), SilentProgress())
    assert report["multiple_choice"]["questions"] == 1
