"""Inflected forms of a word: plurals, tenses, comparatives; regular by rule, others by WordNet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VOWELS = "aeiou"
EXCEPTION_FILES = {"n": "noun.exc", "v": "verb.exc", "a": "adj.exc"}

Irregular = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Part of speech -> base form -> its irregular forms."""


def read_irregular(wordnet: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """The irregular forms that WordNet lists, by part of speech (n, v, a) and base form."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for pos, name in EXCEPTION_FILES.items():
        by_base: dict[str, tuple[str, ...]] = {}
        path = wordnet / name
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            form, *bases = line.split()
            for base in bases:
                if form.isalpha() and form != base:
                    by_base[base] = (*by_base.get(base, ()), form)
        found[pos] = by_base
    return found


def with_s(word: str) -> str:
    """The plural of a noun, or the third person of a verb, by rule."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2:-1] not in VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def _doubles(word: str) -> bool:
    """Whether the last letter doubles: stop, stopping; words of one syllable only."""
    vowels = sum(letter in VOWELS for letter in word)
    return (
        vowels == 1
        and len(word) > 2
        and word[-1] not in VOWELS + "wxy"
        and word[-2] in VOWELS
        and word[-3] not in VOWELS
    )


def with_ending(word: str, ending: str) -> str:
    """The word with -ing, -ed, -er or -est, by rule."""
    if word.endswith("e"):
        keeps = ending == "ing" and word.endswith(("ee", "oe", "ye"))
        return (word if keeps else word[:-1]) + ending
    if word.endswith("y") and word[-2:-1] not in VOWELS and ending != "ing":
        return word[:-1] + "i" + ending
    return (word + word[-1] if _doubles(word) else word) + ending


def inflected_forms(word: str, pos: str, irregular: Irregular) -> tuple[str, ...]:
    """Forms of a base form as part of speech n, v or a; none for adverbs.

    Forms by rule that nobody writes are among them: the caller drops those by frequency.
    """
    special = irregular.get(pos, {}).get(word, ())
    if pos == "n":
        by_rule = word[:-3] + "men" if word.endswith("man") else with_s(word)
        return special or (by_rule,)
    if pos == "v":
        past = tuple(form for form in special if not form.endswith("ing"))
        return (with_s(word), with_ending(word, "ing"), *(past or (with_ending(word, "ed"),)))
    if pos == "a" and len(word) <= 7:
        return special or (with_ending(word, "er"), with_ending(word, "est"))
    return ()
