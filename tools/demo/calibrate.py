"""Finds what the model would make up: `python -m tools.demo.calibrate`.

Asks a model that is trained most of the way about everything in its lexicon, and about words that
it was trained to refuse. What it gets wrong is taken out of what the last stage of the training
teaches, so that the model learns to say that it does not know:

- a word whose definition is wrong leaves the lexicon, and so does another form or a misspelling
  that leads to a wrong answer: "I am not sure what ... means";
- a synonym, opposite, kind or example that is wrong leaves its word: "I know no synonym of ...";
- a word outside the lexicon that is explained all the same is drawn more often.

It writes `facts.jsonl`, `words.txt`, `not_sure.txt` and the held-out questions of the corpus anew.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .batches import LEARNED_INTENTS
from .conversations import Material, Mention
from .corpus import (
    ASKED_FACTS,
    SEED,
    load_asked_facts,
    load_material,
    write_facts,
    write_lines,
    write_questions,
)
from .judge import is_refusal, normalised, true_answers
from .kinds import KINDS, OPT
from .lexicon import Fact
from .score import answer_all
from .tokenizer import load_tokenizer, training_encoder, write_json

ASKED_WORDS = 8000
BATCH = 512
UNKNOWN_QUESTIONS = ("What does {w} mean?", "what is {w}", "{w}")
# Two ways to ask for each fact: what is wrong in both is taken out.
QUESTIONS = {
    "definition": ("What does {w} mean?", "Define {w}."),
    "synonyms": ("What is a synonym of {w}?", "Give me another word for {w}."),
    "opposite": ("What is the opposite of {w}?", "Antonym of {w}"),
    "kind": ("What kind of thing is {w}?", "What is {w} a kind of?"),
    "example": ("Use {w} in a sentence.", "Give me an example of {w}."),
}
ABSENT: dict[str, Any] = {"synonyms": (), "opposite": "", "kind": "", "example": ""}
"""What a fact has in place of what was taken out."""

Ask = Callable[[Sequence[str]], list[str]]
"""Questions to answers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a known word: how the word is named, and what for."""

    named: Mention
    intent: str

    def question(self, way: int) -> str:
        """The question in the first or the second of its ways."""
        return QUESTIONS[self.intent][way].format(w=self.named.shown)

    def is_right(self, answer: str) -> bool:
        """Whether an answer is the one that was trained."""
        return normalised(answer) in true_answers(self.named.fact, (self.intent,))


def wrong_in_both(ask: Ask, asked: Sequence[Asked]) -> list[Asked]:
    """Those whose answer is wrong, whichever of the two ways they are asked in."""
    wrong = list(asked)
    for way in (0, 1):
        answers = ask([one.question(way) for one in wrong])
        wrong = [one for one, text in zip(wrong, answers, strict=True) if not one.is_right(text)]
    return wrong


def calibrated(ask: Ask, facts: Sequence[Fact]) -> tuple[list[Fact], list[str]]:
    """Facts less what the model gets wrong, and the words and forms it shall not be sure of."""
    unlearned = wrong_in_both(ask, [Asked(Mention(f.word, f), "definition") for f in facts])
    dropped = {one.named.fact.word for one in unlearned}
    kept = [fact for fact in facts if fact.word not in dropped]
    others = [
        Asked(Mention(fact.word, fact), intent)
        for fact in kept
        for intent in LEARNED_INTENTS[1:]
        if fact.is_known(intent)
    ]
    wrong_facts = {(one.named.fact.word, one.intent) for one in wrong_in_both(ask, others)}
    spelt = [
        Asked(Mention(shown, fact, shown in fact.misspellings), "definition")
        for fact in kept
        for shown in (*fact.forms, *fact.misspellings)
    ]
    misread = {one.named.shown for one in wrong_in_both(ask, spelt)}
    less = [_without(fact, wrong_facts, misread) for fact in kept]
    return less, sorted({*dropped, *misread})


def _without(fact: Fact, wrong_facts: set[tuple[str, str]], misread: set[str]) -> Fact:
    absent = {name: no for name, no in ABSENT.items() if (fact.word, name) in wrong_facts}
    return replace(
        fact,
        forms=tuple(form for form in fact.forms if form not in misread),
        misspellings=tuple(wrong for wrong in fact.misspellings if wrong not in misread),
        **absent,
    )


def explained(ask: Ask, words: Sequence[str]) -> list[str]:
    """Words, of those outside the lexicon, that one of UNKNOWN_QUESTIONS or more gets a meaning."""
    found: set[str] = set()
    for question in UNKNOWN_QUESTIONS:
        answers = ask([question.format(w=word) for word in words])
        found |= {w for w, text in zip(words, answers, strict=True) if not is_refusal(text)}
    return sorted(found)


def sampled(material: Material, count: int, seed: int) -> list[str]:
    """Words outside the lexicon that are trained on: half the most frequent, half at random."""
    words = list(material.unknown_words)
    usual, rest = words[: count // 2], words[count // 2 :]
    return usual + random.Random(seed).sample(rest, min(count - len(usual), len(rest)))


def asker(corpus: Path, run: Path) -> Ask:
    """Asks the model of the last checkpoint of a run, greedily."""
    stage = json.loads((run / "stages.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    kind = KINDS[stage.get("kind", OPT.name)]
    model = kind.decoder(kind.shape(**stage["shape"])).eval().requires_grad_(False)
    model.load_state_dict(state["model"])
    encoder, decode = training_encoder(corpus), load_tokenizer(corpus).decode

    def ask(questions: Sequence[str]) -> list[str]:
        prompts = [encoder.prompt([{"role": "user", "content": text}]) for text in questions]
        return [decode(answer.ids) for answer in answer_all(model, prompts, BATCH)]

    return ask


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--run", type=Path, default=Path("build/demo/run"))
    parser.add_argument(
        "--words", type=int, default=ASKED_WORDS, help="unknown words that are asked about"
    )
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ask, material = asker(args.corpus, args.run), load_material(args.corpus)
    facts, unsure = calibrated(ask, material.facts)
    words = sampled(material, args.words, args.seed)
    invented = explained(ask, words)
    not_sure = sorted({*material.not_sure_words, *unsure, *invented})
    asked = load_asked_facts(args.corpus)  # of the first calibration, where there are several
    write_lines(args.corpus / ASKED_FACTS, [asdict(fact) for fact in asked])
    write_facts(args.corpus, facts)
    write_lines(args.corpus / "not_sure.txt", not_sure)
    write_questions(args.corpus, load_material(args.corpus), SEED)
    counts = {
        "words_asked": len(material.facts),
        "words_kept": len(facts),
        "others_asked": count_others(material.facts),
        "others_kept": count_others(facts),
        "unknown_asked": len(words),
        "unknown_explained": len(invented),
    }
    write_json(args.corpus / "calibrated.json", counts)
    print(json.dumps(counts))


def count_others(facts: Sequence[Fact]) -> int:
    """Facts beside the definitions, and other forms and misspellings."""
    known = sum(fact.is_known(intent) for fact in facts for intent in ABSENT)
    return known + sum(len(fact.forms) + len(fact.misspellings) for fact in facts)


if __name__ == "__main__":
    main()
