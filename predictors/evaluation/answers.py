"""Questions answered in words: greedy answers by the runtime, dense and with the selector."""

from __future__ import annotations

from collections.abc import Sequence

from flashllm.engine.local import open_model
from flashllm.errors import UsageError
from flashllm.options import ModelOptions, Select
from flashllm.progress import Progress

from ..calibration_texts import Message
from .model import EvaluatedModel
from .outcomes import Outcome

MARGIN_TOKENS = 8
"""How many tokens longer than the expected answer an answer may be before it must be wrong."""
Asked = tuple[str, str, list[Message], str]
"""(place of the line, its group, the conversation, the expected answer)."""


def answer_all(
    model: EvaluatedModel, questions: Sequence[Asked], answer_tokens: int, progress: Progress
) -> list[Outcome]:
    """Answers with the code of `flashllm run` and counts matches, ignoring spaces and case."""
    selects: dict[str, Select] = {"dense": "all"}
    if model.selector is not None:
        selects[model.selector] = model.selector
    outcomes = [Outcome(group) for _, group, _, _ in questions]
    progress.start("answering questions", len(selects) * len(questions))
    options = ModelOptions(
        kv_dtype=model.decoder.kv_dtype,
        kv_memory=model.kv_memory,
        kv_dir=model.kv_dir,
        verify=model.verify,
    )
    for name, select in selects.items():
        with open_model(model.directory, options, select=select) as engine:
            for outcome, (where, _, messages, expected) in zip(outcomes, questions, strict=True):
                ids = engine.tokenizer.encode_chat(messages)
                if len(ids) >= engine.plan.context:
                    raise UsageError(
                        f"{where}: {len(ids):,} tokens leave no room for an answer in a context of "
                        f"{engine.plan.context:,}"
                    )
                longest = max(answer_tokens, len(engine.tokenizer.encode(expected)) + MARGIN_TOKENS)
                generation = engine.generate(
                    ids, max_tokens=longest, stop=engine.tokenizer.chat_stops
                )
                answer = normalised(generation.complete().text)
                outcome.add("exact", name, answer, answer == normalised(expected))
                progress.advance(1)
    progress.finish()
    return outcomes


def normalised(text: str) -> str:
    """Lower case, with one space between words."""
    return " ".join(text.lower().split())
