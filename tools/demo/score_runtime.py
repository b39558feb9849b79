"""The demo's answers by the runtime, sparse against dense: `python -m tools.demo.score_runtime`.

The same held-out questions as `tools.demo.score`, answered greedily by a converted model with all
neurons and with the predicted ones, and the errors of the predictors as they were calibrated.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from flashllm.engine import load_info, model_directory, open_model

from .score import ANSWER_TOKENS_MAX, judge_for

HELD_OUT = Path("flashllm/demo/heldout.jsonl")


def right_answers(model: Path, select: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Share of right answers by intent, and what decoding them cost."""
    right: dict[str, list[bool]] = defaultdict(list)
    answers, hits, misses = [], 0, 0
    with open_model(model, select=select) as engine:
        assert engine.tokenizer is not None
        for record in records:
            ids = engine.tokenizer.encode_chat(record["messages"])
            generation = engine.generate(ids, max_tokens=ANSWER_TOKENS_MAX)
            for _ in generation:
                pass
            answers.append(generation.text.strip())
            hits += sum(cost.hits for cost in generation.costs)
            misses += sum(cost.misses for cost in generation.costs)
            judge = judge_for(record["intent"])
            right[record["intent"]].append(judge(answers[-1], record["expected"]))
    return {
        "right": {intent: sum(marks) / len(marks) for intent, marks in sorted(right.items())},
        "hit_rate": hits / (hits + misses),
        "answers": answers,
    }


def compare(model: Path, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Dense and predicted side by side."""
    dense = right_answers(model, "all", records)
    predicted = right_answers(model, "predicted", records)
    pairs = zip(dense.pop("answers"), predicted.pop("answers"), strict=True)
    return {
        "questions": len(records),
        "dense": dense,
        "predicted": predicted,
        "same_answer": sum(a == b for a, b in pairs) / len(records),
        "predictors": load_info(model).activity,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a converted model; without one, the demo")
    parser.add_argument("--limit", type=int, default=None, help="only the first questions")
    args = parser.parse_args()
    lines = HELD_OUT.read_text(encoding="utf-8").splitlines()[: args.limit]
    model = model_directory(args.model)
    print(json.dumps(compare(model, [json.loads(line) for line in lines]), indent=2))


if __name__ == "__main__":
    main()
