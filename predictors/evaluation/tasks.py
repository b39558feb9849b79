"""Questions with right answers, scored dense and with the selector side by side.

A line is a multiple choice, `query` (text) or `messages` with `choices` and the number of the
right one as `answer`; or a question to be answered in words, `messages` with the `expected` text.
`intent`, where a line has it, is the group that it is counted in.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import UsageError
from flashllm.progress import Progress

from ..calibration_texts import ConversationEncoder, Message, checked_messages
from .answers import answer_all
from .choices import Encoded, encode_choices, score_choices
from .lines import TextFile, evenly, read_text_file
from .model import EvaluatedModel
from .outcomes import summarize

CHOICES_MAX = 64
ANSWER_TOKENS = 64


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How many of the questions are asked, and how long answers may be."""

    limit: int | None = None
    """The number of questions, taken evenly from all of the file; None for all."""
    answer_tokens: int = ANSWER_TOKENS
    """The longest answer, unless a longer one is expected."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Question:
    """A line of a file of tasks; it has choices or an expected answer."""

    where: str
    group: str
    query: str | list[Message]
    choices: tuple[str, ...] = ()
    answer: int = 0
    expected: str = ""


def evaluate_tasks(
    model: EvaluatedModel, path: Path, settings: TaskSettings, progress: Progress
) -> dict[str, Any]:
    """Shares of right answers with their standard errors, as plain values.

    Raises `UsageError` for a file that cannot be used, with the number of the line.
    """
    file = read_text_file(path, progress)
    all_questions = _questions(file)
    questions = [all_questions[at] for at in sorted(evenly(len(all_questions))[: settings.limit])]
    if model.tokenizer is None:
        raise UsageError(f"{path}: the model has no tokenizer, and questions are text")
    talks = ConversationEncoder(model.tokenizer)
    choices = [question for question in questions if question.choices]
    spoken = [question for question in questions if not question.choices]
    # All are encoded before any is scored: what is wrong with a line should not be told late.
    encoded = [_encode(model, talks, question) for question in choices]
    report: dict[str, Any] = {
        "file": str(path),
        "sha256": file.sha256,
        "questions": len(questions),
        "questions_in_file": len(all_questions),
        "settings": settings.to_json(),
    }
    if choices:
        report["multiple_choice"] = summarize(score_choices(model, encoded, progress))
    if spoken:
        outcomes = answer_all(
            model,
            [(q.where, q.group, _messages(q), q.expected) for q in spoken],
            settings.answer_tokens,
            progress,
        )
        report["generation"] = summarize(outcomes)
    return report


def _encode(model: EvaluatedModel, talks: ConversationEncoder, question: Question) -> Encoded:
    assert model.tokenizer is not None
    encoded = encode_choices(model.tokenizer, talks, question.query, question.choices)
    longest = max(len(ids) for ids in encoded.ids)
    if longest > model.decoder.context_tokens:
        raise UsageError(
            f"{question.where}: {longest:,} tokens, and the model's context holds "
            f"{model.decoder.context_tokens:,}"
        )
    characters = tuple(map(len, question.choices))
    return Encoded(encoded.given, encoded.ids, characters, question.answer, question.group)


def _messages(question: Question) -> list[Message]:
    assert isinstance(question.query, list)
    return question.query


def _questions(file: TextFile) -> list[Question]:
    return [_parse(f"{file.path}, line {number}", line) for number, line in file.lines()]


def _parse(where: str, line: str) -> Question:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}); expected an object") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected an object with choices, or with an expected answer")
    group = value.get("intent", "")
    if not isinstance(group, str):
        raise UsageError(f"{where}: intent is no text")
    if "choices" in value:
        query = _query(where, value)
        choices, answer = _choices(where, value)
        return Question(where, group, query, choices=choices, answer=answer)
    if not isinstance(value.get("expected"), str) or not value["expected"].strip():
        raise UsageError(f"{where}: expected choices, or an expected answer as text")
    if "messages" not in value:
        raise UsageError(f"{where}: a question to be answered in words needs messages")
    return Question(
        where, group, checked_messages(where, value["messages"]), expected=value["expected"]
    )


def _query(where: str, value: dict[str, Any]) -> str | list[Message]:
    if ("query" in value) == ("messages" in value):
        raise UsageError(f"{where}: expected either a query or messages")
    if "messages" in value:
        return checked_messages(where, value["messages"])
    if not isinstance(value["query"], str) or not value["query"].strip():
        raise UsageError(f"{where}: the query is no text, or empty")
    return str(value["query"])


def _choices(where: str, value: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    choices, answer = value["choices"], value.get("answer")
    if not isinstance(choices, list) or not 2 <= len(choices) <= CHOICES_MAX:
        raise UsageError(f"{where}: expected a list of 2 to {CHOICES_MAX} choices")
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise UsageError(f"{where}: a choice that is no text, or empty")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise UsageError(
            f"{where}: answer is {answer!r}; expected the number of a choice, "
            f"0 to {len(choices) - 1}"
        )
    return tuple(choices), answer
