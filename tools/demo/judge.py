"""Decides of an answer whether it is right, an honest refusal, true but not asked, or invented."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from . import small_talk
from .lexicon import Fact, did_you_mean

Verdict = Literal["right", "refused", "not asked", "invented"]

ONLY_EXPLAINS = "I only explain words. "
# Besides what it was asked for, an answer may be these and is right.
ALSO_RIGHT = {
    "task": ("definition",),
    "definition": ("everything",),
    "kind": ("definition", "everything"),
    "example": (),
    "spelling": (),
    "part_of_speech": ("definition", "everything"),
}


def normalised(text: str) -> str:
    """Lower case, with one space between words."""
    return " ".join(text.lower().split())


def _canned() -> Iterable[str]:
    for table in (small_talk.SMALL_TALK, small_talk.REFUSED):
        for answer, _ in table:
            yield answer
    yield from (small_talk.UNKNOWN_LANGUAGE, small_talk.ONE_AT_A_TIME)


def _pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Texts in which a number, or one to three words, may stand where they have a place for one."""
    place = re.compile(r"\\\{(w|count)\\\}")
    parts = (
        place.sub(lambda _: r"\S+(?: \S+){0,2}", re.escape(normalised(text))) for text in texts
    )
    return re.compile("|".join(f"(?:{part})" for part in parts))


CANNED = _pattern(_canned())
UNKNOWN = _pattern((*small_talk.UNKNOWN, small_talk.NOT_SURE))
NOTHING_KNOWN = re.compile(r"i know no (synonym|opposite|example) of .+|i know no kind for .+")


def says_unknown(answer: str) -> bool:
    """Whether an answer says that the word is not known, however the word is spelt in it."""
    return bool(UNKNOWN.fullmatch(normalised(answer)))


def is_refusal(answer: str) -> bool:
    """Whether an answer says honestly that it has none, or is small talk; nothing at all does."""
    text = normalised(answer).removeprefix(normalised(ONLY_EXPLAINS)).strip()
    return not text or bool(CANNED.fullmatch(text) or UNKNOWN.fullmatch(text))


def true_answers(fact: Fact, intents: Iterable[str]) -> set[str]:
    """Normalised answers about a word for some intents, in all the forms they are trained in."""
    answers = fact.answers()
    plain = [answers[intent] for intent in intents if intent in answers]
    suggested = [did_you_mean(fact.word, answer) for answer in plain]
    explained = [ONLY_EXPLAINS + answer for answer in plain]
    return {normalised(text) for text in (*plain, *suggested, *explained)}


def _nothing_known(fact: Fact) -> set[str]:
    """Answers that say that the model knows no synonym, opposite, kind or example; no spaces."""
    bare = Fact(fact.word, fact.pos, fact.gloss)
    answers = true_answers(bare, ("synonyms", "opposite", "kind", "example"))
    return {answer.replace(" ", "") for answer in answers}


def judge(answer: str, intent: str, word: str, facts: Mapping[str, Fact]) -> Verdict:
    """What an answer to a question about `word` is, "" where the question is about none.

    `facts` are those of the lexicon, by word in small letters.
    """
    text = normalised(answer)
    fact = facts.get(word.lower())
    asked = (intent, *ALSO_RIGHT.get(intent, ()))
    if fact is not None and text in true_answers(fact, asked):
        return "refused" if NOTHING_KNOWN.fullmatch(text) else "right"
    if is_refusal(answer):
        return "right" if fact is None else "refused"
    if fact is not None and text.replace(" ", "") in _nothing_known(fact):
        return "refused"
    return "not asked" if _is_true(text, facts) else "invented"


def _is_true(text: str, facts: Mapping[str, Fact]) -> bool:
    """Whether a text is a true answer about any word of the lexicon that it names."""
    named = (facts[word] for word in set(re.findall(r"[a-z]+", text)) if word in facts)
    return any(text in true_answers(fact, fact.answers()) for fact in named)
