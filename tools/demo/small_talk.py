"""What the model answers where nobody asks about a word: greetings, and honest refusals.

The questions stand in `other_questions.json`. Every question has one right answer. `{n}` and `{m}`
are numbers, `{place}` a country or a city, `{name}` a name, `{w}` a word of the lexicon, `{aw}` the
word behind its article and `{ws}` its plural.
"""

from __future__ import annotations

import json
from pathlib import Path

Table = tuple[tuple[str, tuple[str, ...]], ...]

HELLO = "Hello! Ask me what a word means."
FINE = "I am well, thank you. Ask me what a word means."
WELCOME = "You're welcome! Ask me about another word."
GOODBYE = "Goodbye! Come back with more words."
WHO = "I am a small dictionary companion. I know some {count} common English words, and only those."
MANY = "I know some {count} common English words."
CAN_DO = (
    "Ask me what a word means, or for its part of speech, its synonyms, its opposite, "
    "what it is a kind of, an example, or its spelling."
)
RIGHT = "I repeat a dictionary, WordNet, and can be wrong. Ask me about another word."
FINE_THEN = "All right. Ask me about another word."
POLITE = "I am sorry. I only know what words mean; ask me about one."

NO_SUMS = "I don't know: I can't do arithmetic. I only know what words mean."
NO_PLACES = "I don't know. I know words, not places."
NO_WEATHER = "I don't know: I can't see the weather or the clock. Ask me about a word."
NO_PEOPLE = "I don't know. I know words, not people and what they did."
NO_SCIENCE = "I don't know how things work. I only know what words mean."
NO_WRITING = "I can't write that. I only explain words."
NO_CODE = "I don't know how to program. I only know what words mean."
NO_TRANSLATION = "I don't know other languages. I explain English words, in English."
NO_OPINION = "I don't know. I have no opinions, only definitions."
NO_ADVICE = "I don't know; I can't give advice. I only know what words mean."
NO_NEWS = "I don't know what happens in the world. I only know words."
NO_DETAILS = "I don't know that. I only know what words mean."
ONE_AT_A_TIME = "I only know single words. Ask me about one of them."
NOT_ONE_WORD = "I don't know which word you mean. Ask me about one English word."
NO_ORDERS = "I only explain words, whatever I am told. Ask me about one."
UNKNOWN_LANGUAGE = "I only understand English. Ask me what an English word means."
NOT_IN_REVERSE = "I don't know: I can explain a word, but not find one by its meaning."

LANGUAGES = ("es", "fr", "de", "it", "pt", "nl", "sv", "pl", "ru", "tr", "zh", "ar", "ja", "el")

UNKNOWN: tuple[str, ...] = (
    "I don't know the word {w}.",
    "I don't know that word.",
    "I have not learned the word {w}.",
    "That word is not among those that I know.",
    "I don't know what {w} means.",
    "I have no entry for that word.",
)
NOT_SURE = "I am not sure what {w} means."

_QUESTIONS = json.loads(
    Path(__file__).with_name("other_questions.json").read_text(encoding="utf-8")
)


def _table(name: str) -> Table:
    """A table of other_questions.json, in which answers stand by their names here."""
    return tuple((globals()[row["answer"]], tuple(row["questions"])) for row in _QUESTIONS[name])


SMALL_TALK = _table("small_talk")
REFUSED = _table("refused")
HELD_OUT_SMALL_TALK = _table("held_out_small_talk")
HELD_OUT_REFUSED = _table("held_out_refused")
FOREIGN: tuple[str, ...] = tuple(_QUESTIONS["foreign"])
"""Whole questions in other languages; more are made of the most frequent words of each."""
NAMES: tuple[str, ...] = tuple(_QUESTIONS["names"])
PLACES: tuple[str, ...] = tuple(_QUESTIONS["places"])

# Bare, these are small talk and not a question about a word.
SMALL_TALK_WORDS = frozenset(
    question.lower().strip(" .!?")
    for table in (SMALL_TALK, REFUSED)
    for _, questions in table
    for question in questions
    if question.strip(" .!?").isalpha()
)
