"""Turns WordNet into what the model shall know: one canonical answer per (lemma, intent).

A lemma is a single alphabetic word. Its first sense in its most frequent part of speech decides
everything.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from .phrases import SMALL_TALK_WORDS
from .wordnet import KINDS, OPPOSITE, POS_NAMES, Synset, WordNet

GLOSS_WORDS_MAX = 16
EXAMPLE_WORDS_MAX = 9
SYNONYMS_MAX = 3
NOT_FOR_EVERYBODY = re.compile(r"\b(slur|obscene|offensive (term|name|word)|disparaging)\b")
ALWAYS_IN = ("ocean", "hello", "goodbye", "thanks")


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of one lemma; empty where WordNet says nothing."""

    word: str
    pos: str
    gloss: str
    synonyms: tuple[str, ...] = ()
    opposite: str = ""
    kind: str = ""
    example: str = ""

    def answers(self) -> dict[str, str]:
        """The canonical answer for every intent."""
        word = self.word
        return {
            "definition": f"{word} ({self.pos}): {self.gloss}",
            "part_of_speech": f"{word} is {with_article(self.pos)}.",
            "synonyms": f"Another word for {word}: {', '.join(self.synonyms)}."
            if self.synonyms
            else f"I know no synonym of {word}.",
            "opposite": f"The opposite of {word} is {self.opposite}."
            if self.opposite
            else f"I know no opposite of {word}.",
            "kind": f"{word} is a kind of {self.kind}."
            if self.kind
            else f"I know no kind for {word}.",
            "example": f"For example: {self.example}"
            if self.example
            else f"I know no example of {word}.",
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Fact:
        """The fact that `as_dict` wrote, read back from JSON."""
        return cls(**{**record, "synonyms": tuple(record["synonyms"])})

    def as_dict(self) -> dict[str, object]:
        """The fact as plain values, ready for JSON."""
        return asdict(self)


def unknown_answer(word: str) -> str:
    """The answer for a word outside the lexicon."""
    return f"I don't know the word {word}."


def with_article(word: str) -> str:
    """The word behind "a" or "an", by its first letter."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def short_gloss(gloss: str) -> str:
    """The first clause of a gloss, or "" where no clean cut makes it short enough."""
    clause = re.split(r'[;"]', gloss, maxsplit=1)[0].strip(" :,")
    clause = re.sub(r"^\([^)]*\)\s*", "", clause)
    clause = re.sub(r"`([^`']*)'", r"\1", clause)
    if len(clause.split()) > GLOSS_WORDS_MAX:
        clause = re.sub(r"\s*\([^)]*\)", "", clause)
    while len(clause.split()) > GLOSS_WORDS_MAX and re.search(r"[,:]", clause):
        clause = re.sub(r"[,:][^,:]*$", "", clause)
    well_formed = clause.count("(") == clause.count(")") and clause.isascii()
    return clause if well_formed and 0 < len(clause.split()) <= GLOSS_WORDS_MAX else ""


def _example(word: str, gloss: str) -> str:
    for quote in re.findall(r'"([^"]+)"', gloss):
        words = quote.split()
        if re.search(rf"\b{word}\b", quote) and len(words) <= EXAMPLE_WORDS_MAX and quote.isascii():
            return str(quote).strip()
    return ""


def _word(raw: str) -> str:
    return raw.replace("_", " ")


def _related(net: WordNet, synset: Synset, lemma: str, symbols: tuple[str, ...]) -> str:
    """The first word that a relation of this lemma (or of its whole synset) leads to."""
    numbers = {i + 1 for i, word in enumerate(synset.words) if word.lower() == lemma} | {0}
    for pointer in synset.pointers:
        if pointer.symbol in symbols and pointer.source_word in numbers:
            return _word(net.synset(*pointer.target).words[max(pointer.target_word, 1) - 1])
    return ""


def make_fact(net: WordNet, lemma: str) -> Fact | None:
    """Facts of one lemma, or None where its gloss has no short clean clause."""
    synset = net.first_synset(lemma)
    gloss = short_gloss(synset.gloss)
    if not gloss or NOT_FOR_EVERYBODY.search(synset.gloss):
        return None
    others = [_word(word) for word in synset.words if word.lower() != lemma and "." not in word]
    return Fact(
        word=lemma,
        pos=POS_NAMES[synset.pos],
        gloss=gloss,
        synonyms=tuple(others[:SYNONYMS_MAX]),
        opposite=_related(net, synset, lemma, (OPPOSITE,)),
        kind=_related(net, synset, lemma, KINDS),
        example=_example(lemma, synset.gloss),
    )


def ranked_lemmas(net: WordNet) -> list[str]:
    """Every lemma of two letters or more, most frequent first; then by senses, length, a to z."""

    def order(lemma: str) -> tuple[int, int, int, str]:
        entry = net.entries[lemma]
        return (-entry.count, -sum(map(len, entry.senses.values())), len(lemma), lemma)

    return sorted((lemma for lemma in net.entries if len(lemma) > 1), key=order)


def make_lexicon(net: WordNet, words: int) -> list[Fact]:
    """Facts of the most frequent lemmas, and of the few that are always in."""
    ranked = ranked_lemmas(net)
    facts: dict[str, Fact] = {}
    for lemma in [*(word for word in ALWAYS_IN if word in net.entries), *ranked]:
        if len(facts) == words:
            break
        fact = None if lemma in facts else make_fact(net, lemma)
        if fact is not None:
            facts[lemma] = fact
    rank = {lemma: index for index, lemma in enumerate(ranked)}
    return sorted(facts.values(), key=lambda fact: rank[fact.word])


def rare_words(net: WordNet, facts: list[Fact]) -> list[str]:
    """Lemmas that WordNet never saw tagged: words that exist and that the model shall not know."""
    known = {fact.word for fact in facts} | SMALL_TALK_WORDS
    return sorted(
        lemma
        for lemma, entry in net.entries.items()
        if entry.count == 0 and 3 < len(lemma) < 12 and lemma not in known
    )
