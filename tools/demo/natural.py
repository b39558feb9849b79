"""Scores a demo as people meet it: `python -m tools.demo.natural [MODEL]`.

Asks the 300 questions of `natural_questions.jsonl` through the runtime, as it runs, and counts
answers that are right, refused, true but not asked, and invented. Whoever wrote the questions had
not seen the phrasings that the model is trained on. `{answer}` in a question's history stands for
what the model answered.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashllm import open_model
from flashllm.engine.local import Model
from flashllm.errors import UsageError

from .corpus import load_asked_facts
from .judge import judge
from .lexicon import Fact
from .tokenizer import write_json

QUESTIONS = Path(__file__).with_name("natural_questions.jsonl")
ANSWER_TOKENS_MAX = 120
TOO_LONG = "(too long a question)"


def answered(model: Model, messages: list[dict[str, str]]) -> str:
    """The greedy answer to the last of the messages; those before it are answered in turn."""
    tokenizer = model.tokenizer
    assert tokenizer is not None  # the demo has one
    talk: list[dict[str, str]] = []
    previous: dict[int, list[int]] = {}
    text = ""
    for message in messages:
        if message["role"] == "assistant":
            talk.append({"role": "assistant", "content": text})
            continue
        talk.append(message)
        try:
            generation = model.generate(tokenizer.encode_chat(talk, previous), ANSWER_TOKENS_MAX)
        except UsageError:  # longer than the context: the chat refuses it too
            return TOO_LONG
        text = "".join(token.text for token in generation).strip()
        previous[len(talk)] = list(generation.ids)
    return text


def score(
    model: Model, facts: Mapping[str, Fact], questions: list[dict[str, Any]]
) -> dict[str, Any]:
    """Counts of verdicts, of all questions and by kind, and every answer that is not right."""
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    others = []
    for question in questions:
        answer = answered(model, question["messages"])
        verdict = judge(answer, question["intent"], question["word"], facts)
        if answer == TOO_LONG:
            verdict = "refused"
        verdicts[question["kind"]][verdict] += 1
        if verdict != "right":
            asked = question["messages"][-1]["content"]
            others.append({"verdict": verdict, "asked": asked[:200], "answered": answer})
    total = sum(verdicts.values(), Counter())
    count = len(questions)
    return {
        "questions": count,
        "right_or_refused": round((total["right"] + total["refused"]) / count, 4),
        "invented": round(total["invented"] / count, 4),
        "verdicts": dict(total),
        "by_kind": {kind: dict(counts) for kind, counts in sorted(verdicts.items())},
        "not_right": others,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a converted model (the demo)")
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument(
        "--select", choices=("predicted", "all"), help="of the demo (predicted); all: every neuron"
    )
    parser.add_argument("--show", action="store_true", help="print every answer that is not right")
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    facts = {fact.word.lower(): fact for fact in load_asked_facts(args.corpus)}
    if not facts:  # nothing could be judged right
        parser.error(f"{args.corpus}: no facts; first: python -m tools.demo.corpus --more")
    questions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    with open_model(args.model, select=args.select) as model:
        result = score(model, facts, questions)
    if args.json is not None:
        write_json(args.json, result)
    others = result.pop("not_right")
    for item in others if args.show else ():
        print(f"{item['verdict']}: {item['asked']}\n  {item['answered']}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
