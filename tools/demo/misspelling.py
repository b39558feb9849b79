"""Misspellings of a word as people make them, by rules: letters doubled, dropped, swapped, guessed.

The rules are the usual ones of English: double consonants, ie and ei, -ance and -ence, silent
letters, and the plain slips of fingers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

LETTERS_MIN = 6
"""Shorter words are too near to others."""
TIMES_AS_FREQUENT = 30
"""A word is written at least this much more often than what is taken for its misspelling."""

SOUNDS = (
    ("ie", "ei"),
    ("ei", "ie"),
    ("ance", "ence"),
    ("ence", "ance"),
    ("ant", "ent"),
    ("ent", "ant"),
    ("able", "ible"),
    ("ible", "able"),
    ("ary", "ery"),
    ("ery", "ary"),
    ("ory", "ary"),
    ("sion", "tion"),
    ("tion", "sion"),
    ("cial", "tial"),
    ("ph", "f"),
    ("ch", "k"),
    ("sc", "s"),
    ("que", "k"),
    ("ough", "uff"),
    ("wh", "w"),
    ("kn", "n"),
    ("wr", "r"),
    ("mn", "m"),
    ("ea", "ee"),
    ("ai", "ay"),
    ("our", "or"),
    ("er", "or"),
    ("or", "er"),
    ("ise", "ize"),
    ("ll", "l"),
    ("i", "e"),
    ("e", "i"),
    ("a", "e"),
    ("e", "a"),
    ("s", "c"),
    ("c", "s"),
    ("y", "i"),
    ("u", "o"),
)


def _variants(word: str) -> Iterator[str]:
    for before, after in SOUNDS:
        for match in re.finditer(before, word):
            if match.start() > 0:
                yield word[: match.start()] + after + word[match.end() :]
    for index in range(1, len(word)):
        left, letter, right = word[:index], word[index], word[index + 1 :]
        if letter == word[index - 1]:
            yield left + right  # one of a double letter
        elif letter not in "aeiouy":
            yield left + letter * 2 + right
        if letter in "aeiou" and 1 < index < len(word) - 1:
            yield left + right
        if right and letter != right[0]:
            yield left + right[0] + letter + right[1:]
    if word.endswith("e"):
        yield word[:-1]


def misspellings(
    word: str, frequencies: Mapping[str, float], words: Collection[str]
) -> tuple[str, ...]:
    """Misspellings of a word, those that are most often seen in texts first, then by rule.

    `words` are all that are spelt rightly: none of them is taken for a misspelling.
    """
    if len(word) < LETTERS_MIN:
        return ()
    most = frequencies.get(word, 0.0) / TIMES_AS_FREQUENT
    found = {
        variant
        for variant in _variants(word)
        if variant != word and variant not in words and frequencies.get(variant, 0.0) <= most
    }
    return tuple(sorted(found, key=lambda variant: (-frequencies.get(variant, 0.0), variant)))
