"""Makes the demo's multiple-choice questions: which gloss belongs to the word.

`python -m tools.demo.choices` writes `choices.jsonl`. A question asks for a meaning in a phrasing
never trained on; its four choices are answers in the form that the model was trained to give, one
with the word's own gloss and three with glosses of other words of the same part of speech and
of about the same length. A quarter of the words are outside what the model was trained on, so that
not everything is known by heart.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .conversations import Material
from .corpus import (
    Sources,
    load_asked_facts,
    load_material,
    plainly,
    usual_sources,
    write_lines,
)
from .inflection import read_irregular
from .lexicon import Fact, find_words, make_fact, rare_words
from .wordnet import WordNet

KNOWN, UNKNOWN = 600, 200
CHOICES = 4
# Glosses this near in length, sorted by it, are those that distractors are drawn from.
NEIGHBOURS = 40
SEED = 31


def distractors(fact: Fact, by_length: Sequence[Fact], rng: random.Random) -> list[Fact]:
    """Other words, their glosses among those nearest in length and all different.

    `by_length` are the facts of the same part of speech, sorted by the length of their glosses.
    """
    place = by_length.index(fact)
    start = max(0, min(place - NEIGHBOURS // 2, len(by_length) - NEIGHBOURS))
    near = {other.gloss: other for other in by_length[start : start + NEIGHBOURS]}
    near.pop(fact.gloss, None)
    return rng.sample(sorted(near.values(), key=lambda other: other.word), CHOICES - 1)


def make_question(
    fact: Fact, others: Sequence[Fact], intent: str, rng: random.Random
) -> dict[str, object]:
    """One line of the file: the question, its choices in a random order, and the right one."""
    asked = plainly(Material([fact], [], held_out=True), fact, rng, "definition")
    order = rng.sample([fact, *others], 1 + len(others))
    return {
        "messages": [{"role": "user", "content": asked.question}],
        "choices": [f"{fact.word} ({fact.pos}): {chosen.gloss}" for chosen in order],
        "answer": order.index(fact),
        "intent": intent,
    }


def make_questions(
    facts: Sequence[Fact], count: int, intent: str, rng: random.Random
) -> list[dict[str, object]]:
    """Questions about as many different words, distractors from among the same facts.

    Words of parts of speech with too few others to choose from are not asked for.
    """
    by_pos: dict[str, list[Fact]] = defaultdict(list)
    for fact in sorted(facts, key=lambda fact: (len(fact.gloss), fact.word)):
        by_pos[fact.pos].append(fact)
    askable = [fact for fact in facts if len(by_pos[fact.pos]) > NEIGHBOURS]
    asked = rng.sample(askable, min(count, len(askable)))
    return [
        make_question(fact, distractors(fact, by_pos[fact.pos], rng), intent, rng) for fact in asked
    ]


def make_all(sources: Sources, corpus: Path, seed: int) -> list[Any]:
    """Questions about words that the model knows, then about words that it does not."""
    rng = random.Random(seed)
    net = WordNet(sources.wordnet)
    found = find_words(net, sources.frequencies, read_irregular(sources.wordnet))
    rare = (make_fact(net, lemma) for lemma in rare_words(found, load_asked_facts(corpus)))
    outside = [fact for fact in rare if fact is not None]
    known = load_material(corpus).facts
    return make_questions(known, KNOWN, "known word", rng) + make_questions(
        outside, UNKNOWN, "unknown word", rng
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--out", type=Path, default=Path("flashllm/demo/choices.jsonl"))
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    questions = make_all(usual_sources(args.wordnet), args.corpus, args.seed)
    write_lines(args.out, questions)
    print(f"{len(questions)} questions, {args.out.stat().st_size:,} bytes, in {args.out}")


if __name__ == "__main__":
    main()
