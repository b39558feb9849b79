"""`python -m tools.recall.compare MODEL`: what policies of keys and values lose of the look-ups.

MODEL is the converted model. First every policy at every budget; then a pool that holds a part of
the tokens, on texts that ask for few of their keys again and again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.bench.kv.cases import POLICIES, parse_cases
from flashllm.bench.kv.report import report, table
from flashllm.bench.kv.runs import KvPassage, run_cases
from flashllm.engine.local import Model, open_model
from flashllm.options import KV_VICTIMS, KvSelection, ModelOptions
from tools.recall.task import Shape, make_text

TOKENS = 8192
ASKED = 200
POPULAR = Shape(pairs=60, noise=0, asked=600, popular=0.2)
"""Pairs first, then questions about few of them: once the pool is full, the pairs are the oldest
tokens that it has, and some of them those that are used most."""
POOL_SHARE = 0.8


def text_shape(tokens: int, asked: int = ASKED) -> Shape:
    """Texts of so many tokens, one in twelve of which is the key or the value of a pair."""
    pairs = tokens // 24
    return Shape(pairs=pairs, noise=tokens - 1 - 2 * pairs - 2 * asked, asked=asked)


def make_passages(shape: Shape, texts: int, seed: int, first: int = 0) -> list[KvPassage]:
    """Texts whose answers from token `first` on count, and whose questions are decoded."""
    generator = np.random.default_rng(seed)
    made = [make_text(shape, generator) for _ in range(texts)]
    is_late = np.arange(shape.tokens) >= first
    return [
        KvPassage(ids.tolist(), shape.prompt, (answers >= 0) & is_late, answers)
        for ids, answers in made
    ]


def compare(
    model: Model,
    text: Shape,
    texts: int,
    policies: Sequence[str],
    budgets: Sequence[float],
    base: KvSelection,
    seed: int,
) -> dict[str, list[dict[str, Any]]]:
    """The rows of both comparisons; the model has room for a second context and any policy."""
    dtype, decoder = model.plan.kv_dtype, model.decoder
    everyone = parse_cases(policies, budgets, base, dtype)
    limited = parse_cases(["infinigen"], budgets[-1:], base, dtype, KV_VICTIMS)
    whole = parse_cases(["infinigen"], budgets[-1:], base, dtype)
    lookups = make_passages(text, texts, seed)
    start = time.monotonic()

    def on_tokens(name: str, tokens: int) -> bool:
        if tokens > 1:  # a prompt
            print(f"{time.monotonic() - start:.0f} s: {name}", file=sys.stderr, flush=True)
        return False

    popular = make_passages(POPULAR, texts, seed, int(POOL_SHARE * POPULAR.tokens))
    return {
        "policies": report(run_cases(decoder, everyone, lookups, on_tokens=on_tokens)),
        "pool": report(run_cases(decoder, [*whole, *limited[1:]], popular, POOL_SHARE, on_tokens)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, and prints two tables, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.recall.compare", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a text (%(default)d)")
    parser.add_argument("--texts", type=int, default=1, help="(%(default)d)")
    parser.add_argument("--asked", type=int, default=ASKED, help="in a text (%(default)d)")
    parser.add_argument("--kv", default=",".join(POLICIES), help="policies (all of them)")
    parser.add_argument("--budget", default="0.05,0.1,0.2", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--start-layer", type=int, default=1, help="(%(default)d)")
    parser.add_argument("--recall", type=float, default=0.95, help="(%(default)g)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    text = text_shape(options.tokens, options.asked)
    policies, budgets = options.kv.split(","), [float(one) for one in options.budget.split(",")]
    context = max(text.tokens, POPULAR.tokens)
    opened = ModelOptions(contexts=2, context=context, kv_policy="specache")
    base = KvSelection("infinigen", recall=options.recall, start_layer=options.start_layer)
    with open_model(options.model, opened) as model:
        for caution in model.cautions():
            print(caution, file=sys.stderr)
        found = compare(model, text, options.texts, policies, budgets, base, options.seed)
    if options.json:
        print(json.dumps(found))
    else:
        print(f"look-ups in {text.tokens:,} tokens\n\n{table(found['policies'])}")
        pool = f"a pool of {POOL_SHARE:.0%} of {POPULAR.tokens:,} tokens, once it is full"
        print(f"{pool}\n\n{table(found['pool'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
