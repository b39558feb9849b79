"""Multiple choice in the manner of lm-evaluation-harness: which choice is the likeliest to follow.

Token boundaries. A query in plain text is joined to each choice by one space, unless a space is
there already, and encoded as one text; the common prefix of all of these and the query is given,
and everything after it is scored. So every choice is judged on the same given tokens, even if a
tokenizer merges the query's end with a choice's beginning. Messages are encoded as the conversation
that ends with the choice as its answer, the end of the answer included; what is given is the prompt
for that answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashllm.progress import Progress

from ..calibration_texts import ConversationEncoder, Message, TextEncoder
from .likelihood import log_probabilities
from .model import Decoder, EvaluatedModel
from .outcomes import Outcome
from .texts import common_prefix


@dataclass(frozen=True, slots=True)
class Encoded:
    """A question's choices as ids, each after the same `given` first tokens."""

    given: int
    ids: tuple[list[int], ...]
    characters: tuple[int, ...] = ()
    """Of each choice's text: what log-likelihoods are divided by for acc_norm."""
    answer: int = 0
    group: str = ""


def encode_choices(
    tokenizer: TextEncoder,
    talks: ConversationEncoder,
    query: str | list[Message],
    choices: Sequence[str],
) -> Encoded:
    """Every choice after the query, and the number of given tokens."""
    if isinstance(query, str):
        before = tokenizer.encode(query)
        ids = tuple(tokenizer.encode(_joined(query, choice)) for choice in choices)
    else:
        before = tokenizer.encode_chat(query)
        answers = ([*query, {"role": "assistant", "content": choice}] for choice in choices)
        ids = tuple(talks.encode(messages) for messages in answers)
    # The first token has nothing before it that could say how likely it is.
    given = max(1, min(common_prefix(before, whole) for whole in ids))
    return Encoded(given, ids)


def score_choices(
    model: EvaluatedModel, questions: Sequence[Encoded], progress: Progress
) -> list[Outcome]:
    """The choice of each mode, by log-likelihood and by log-likelihood per character."""
    modes = {name: mode for name, mode in model.modes.items() if name != "oracle"}
    progress.start(
        "scoring choices", len(modes) * sum(len(ids) for q in questions for ids in q.ids)
    )
    outcomes = []
    for question in questions:
        outcome = Outcome(question.group)
        for name, mode in modes.items():
            logs = []
            for ids in question.ids:
                logs.append(log_likelihood(model.decoder, ids, question.given, mode))
                progress.advance(len(ids))
            scores = {"acc": np.array(logs), "acc_norm": np.array(logs) / question.characters}
            for measure, values in scores.items():
                taken = int(values.argmax())
                outcome.add(measure, name, taken, taken == question.answer)
        outcomes.append(outcome)
    progress.finish()
    return outcomes


def log_likelihood(decoder: Decoder, ids: Sequence[int], given: int, mode: str) -> float:
    """Log-likelihood in nats of all ids after the first `given`."""
    total, done = 0.0, 0
    targets = np.asarray(ids, np.int64)
    for logits in decoder.logits_blocks(ids, mode=mode):
        rows = np.arange(max(done, given - 1), min(done + len(logits), len(ids) - 1))
        if len(rows):
            logs = log_probabilities(logits[rows - done])
            total += float(logs[np.arange(len(rows)), targets[rows + 1]].sum(dtype=np.float64))
        done += len(logits)
    return total


def _joined(query: str, choice: str) -> str:
    return query + ("" if query[-1].isspace() or choice[0].isspace() else " ") + choice
