"""Scores an exported model on the held-out conversations: `python -m tools.demo.score`.

Greedy answers by the plain torch decoder, many prompts at once. An answer is right when it is the
expected one, spaces and case aside; what the model shall not know may be refused in any words.
Sparsity is the fraction of ReLU outputs that are exactly 0, or of experts that are not chosen, over
the tokens of the questions and of the answers given.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .experts import ExpertsDecoder
from .export import load
from .judge import NOTHING_KNOWN, is_refusal, normalised
from .kinds import AnyDecoder
from .tokenizer import EOS, ConversationEncoder, load_tokenizer, write_json

ANSWER_TOKENS_MAX = 110


@dataclass(frozen=True, slots=True)
class Answer:
    """Ids given, their end not included, and the fraction of silent neurons a layer."""

    ids: list[int]
    silent: list[float]
    tokens: int  # that `silent` is a mean over


def is_expected(answer: str, expected: str) -> bool:
    """Whether an answer is the expected one, spaces and case aside."""
    return normalised(answer) == normalised(expected)


def refused_right(answer: str, expected: str) -> bool:
    """Whether an answer says honestly that it has none, in whatever words."""
    del expected
    return is_refusal(answer) or bool(NOTHING_KNOWN.fullmatch(normalised(answer)))


def judge_for(intent: str) -> Callable[[str, str], bool]:
    """What decides, given an answer and the expected one, whether it is right."""
    return refused_right if intent in ("unknown", "refused") else is_expected


@torch.no_grad()
def answer_greedily(model: AnyDecoder, prompts: Sequence[list[int]]) -> list[Answer]:
    """Greedy answers to prompts of one length, which need no padding."""
    ids = torch.tensor(prompts)  # [prompts, tokens]
    hidden = model(ids, torch.arange(ids.shape[1]))
    zeros = _zeros(model)
    tokens = torch.full((len(prompts),), ids.shape[1])
    running = torch.ones(len(prompts), dtype=torch.bool)
    given: list[list[int]] = [[] for _ in prompts]
    stop = min(ids.shape[1] + ANSWER_TOKENS_MAX, model.shape.positions_max)
    for position in range(ids.shape[1], stop):
        chosen = model.logits(hidden[:, -1]).argmax(-1)
        running &= chosen != EOS
        if not running.any():
            break
        for row in running.nonzero()[:, 0].tolist():
            given[row].append(int(chosen[row]))
        hidden = model(chosen[:, None], torch.tensor([position]), model.caches())
        zeros += _zeros(model) * running[:, None]
        tokens += running
    means = zeros / tokens[:, None]
    return [Answer(g, m.tolist(), int(n)) for g, m, n in zip(given, means, tokens, strict=True)]


def _zeros(model: AnyDecoder) -> Tensor:
    """Fraction of silent neurons of the last call, summed over its tokens, [batch, layers]."""
    silent = [layer.active.eq(0).float().mean(-1).sum(-1) for layer in model.blocks]
    return torch.stack(silent, dim=1)


def answer_all(model: AnyDecoder, prompts: Sequence[list[int]], batch: int = 128) -> list[Answer]:
    """Answers in the order of the prompts, computed in batches of equal length."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_length[len(prompt)].append(index)
    answers: dict[int, Answer] = {}
    for indices in by_length.values():
        for start in range(0, len(indices), batch):
            chunk = indices[start : start + batch]
            given = answer_greedily(model, [prompts[i] for i in chunk])
            answers.update(zip(chunk, given, strict=True))
    return [answers[index] for index in range(len(prompts))]


def sparsity_by_layer(answers: Sequence[Answer]) -> list[float]:
    """Mean fraction of silent neurons a layer, over all tokens of all answers and their prompts."""
    total = sum(answer.tokens for answer in answers)
    layers = range(len(answers[0].silent))
    return [sum(a.silent[i] * a.tokens for a in answers) / total for i in layers]


@torch.no_grad()
def expert_shares(model: ExpertsDecoder, contexts: Sequence[list[int]]) -> Tensor:
    """Each expert's share of the choices in its layer over what all had evenly, [layers, experts].

    Over all tokens of the contexts.
    """
    chosen = torch.zeros(model.shape.layers, model.shape.experts)
    for ids in contexts:
        model(torch.tensor([ids]), torch.arange(len(ids)))
        for layer, block in enumerate(model.blocks):
            chosen[layer] += (block.active > 0).sum((0, 1))
    return chosen / chosen.mean(1, keepdim=True)


def score(folder: Path, limit: int | None = None) -> dict[str, Any]:
    """Right answers by intent, sparsity, and a few wrong answers to look at."""
    model, tokenizer = load(folder), load_tokenizer(folder)
    lines = (folder / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[:limit]
    records = [json.loads(line) for line in lines]
    encoder = ConversationEncoder(tokenizer)
    prompts = [encoder.prompt(record["messages"]) for record in records]
    answers = answer_all(model, prompts)
    right: dict[str, list[bool]] = defaultdict(list)
    wrong = []
    for record, answer in zip(records, answers, strict=True):
        text = tokenizer.decode(answer.ids)
        verdict = judge_for(record["intent"])(text, record["expected"])
        right[record["intent"]].append(verdict)
        if not verdict:
            wrong.append({"asked": record["messages"][-1]["content"], "answered": text} | record)
    layers = sparsity_by_layer(answers)
    use: dict[str, list[float]] = {}
    if isinstance(model, ExpertsDecoder):
        contexts = [[*prompt, *a.ids] for prompt, a in zip(prompts, answers, strict=True)]
        shares = expert_shares(model, contexts)
        use["busiest_expert_by_layer"] = [round(share, 3) for share in shares.amax(1).tolist()]
        use["idlest_expert_by_layer"] = [round(share, 3) for share in shares.amin(1).tolist()]
    return {
        "right": {k: round(sum(v) / len(v), 4) for k, v in right.items()},
        "asked": {k: len(v) for k, v in right.items()},
        "sparsity": round(sum(layers) / len(layers), 4),
        "sparsity_by_layer": [round(x, 4) for x in layers],
        **use,
        "wrong": wrong,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("flashllm/demo"))
    parser.add_argument("--limit", type=int, default=None, help="score only the first questions")
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, default=None, help="also write the result here")
    args = parser.parse_args()
    result = score(args.folder, args.limit)
    for item in result.pop("wrong")[: args.show_wrong]:
        print(f"{item['asked']}\n  expected {item['expected']}\n  answered {item['answered']}")
    print(json.dumps(result, indent=2))
    if args.json is not None:
        write_json(args.json, result)


if __name__ == "__main__":
    main()
