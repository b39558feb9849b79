"""The demo's multiple-choice questions: how they are made, and those that are shipped."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import flashllm
from tools.demo.choices import KNOWN, UNKNOWN, distractors, make_questions
from tools.demo.lexicon import Fact

DEMO = Path(flashllm.__file__).parent / "demo"


def facts(count: int, pos: str = "noun") -> list[Fact]:
    return [Fact(f"{pos}{n}", pos, f"gloss {n} " + "x" * (n % 30)) for n in range(count)]


def test_distractors_are_near_in_length_and_all_different() -> None:
    by_length = sorted(facts(200), key=lambda fact: (len(fact.gloss), fact.word))
    rng = random.Random(1)
    for fact in by_length[::9]:
        found = distractors(fact, by_length, rng)
        assert len({fact.gloss, *(other.gloss for other in found)}) == 4
        assert all(abs(len(other.gloss) - len(fact.gloss)) <= 8 for other in found)


def test_a_gloss_that_two_words_share_is_no_distractor() -> None:
    same = [Fact(f"w{n}", "noun", "one gloss" if n < 30 else f"gloss {n}") for n in range(60)]
    found = distractors(same[0], same, random.Random(0))
    assert "one gloss" not in {other.gloss for other in found}


def test_the_right_choice_is_the_words_own_gloss() -> None:
    known = facts(60) + facts(50, "verb") + facts(5, "adverb")
    glosses = {fact.word: f"{fact.word} ({fact.pos}): {fact.gloss}" for fact in known}
    questions = make_questions(known, 80, "known word", random.Random(2))
    assert questions == make_questions(known, 80, "known word", random.Random(2))
    for question in questions:
        right = question["choices"][question["answer"]]
        word = right.split()[0]
        assert right == glosses[word]
        assert word in question["messages"][0]["content"]
        assert not word.startswith("adverb")  # there are too few to choose from


def test_the_file_that_is_shipped() -> None:
    path = DEMO / "choices.jsonl"
    assert path.stat().st_size < 400_000
    questions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    asked = Counter(question["intent"] for question in questions)
    assert asked == {"known word": KNOWN, "unknown word": UNKNOWN}
    words = set((DEMO / "words.txt").read_text(encoding="utf-8").split())
    for question in questions:
        assert len(set(question["choices"])) == 4
        prefixes = {choice.partition(": ")[0] for choice in question["choices"]}
        assert len(prefixes) == 1  # the same word, the same part of speech
        word = prefixes.pop().split()[0]
        assert (word in words) == (question["intent"] == "known word")
    places = Counter(question["answer"] for question in questions)
    assert min(places.values()) > 150
