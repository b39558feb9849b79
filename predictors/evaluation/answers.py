"""Questions answered in words: greedy answers by the runtime, dense and with the selector."""

from __future__ import annotations

from collections.abc import Sequence

from flashllm.engine.local import open_model
from flashllm.errors import UsageError
from flashllm.options import ModelOptions
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
    full = ModelOptions(
        select="all",
        kv_dtype=model.decoder.kv_dtype,
        kv_memory=model.seen.kv_memory,
        kv_dir=model.seen.kv_dir,
        kv_victims=model.seen.kv_victims,
        arithmetic=model.seen.arithmetic,
        verify=model.verify,
    )
    ways = {"dense": full}
    if model.selector is not None:
        ways[model.selector] = full.having(select=model.selector)
    if model.kv_policy != "full":
        ways[model.kv_policy] = full.having(select=model.decoder.selects, **model.seen.kv_overrides)
    outcomes = [Outcome(group) for _, group, _, _ in questions]
    progress.start("answering questions", len(ways) * len(questions))
    for name, options in ways.items():
        with open_model(model.directory, options) as engine:
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
