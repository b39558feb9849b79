"""Draws conversations about words, and what else people say to a small dictionary.

A conversation is a list of turns; each question has one right answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import phrases, small_talk
from .inflection import with_s
from .lexicon import FUNCTION_WORDS, Fact, did_you_mean, with_article

INTENT_WEIGHTS = {
    "part_of_speech": 1,
    "synonyms": 5,
    "opposite": 5,
    "kind": 4,
    "example": 4,
    "spelling": 0.5,
    "everything": 2,
}
# How a conversation goes: so much of each kind in every hundred.
PLAN_WEIGHTS = {
    "definition": 8,
    "definition_then_more": 17,
    "other": 26,
    "everything": 4,
    "chain": 6,
    "unknown": 27,
    "refused": 6,
    "small_talk": 2.5,
    "task": 2,
    "phrase": 1,
    "statement": 1,
    "foreign": 1,
}
ABSENT_FACT_FRACTION = 0.25
"""How often a question is kept whose answer is that WordNet says nothing."""
INFLECTED, MISSPELT = 0.2, 0.15
"""How often a word is named by another of its forms, and how often it is misspelt."""
# fmt: off
SYLLABLES = (
    "ba", "be", "bi", "bo", "bra", "clo", "cri", "da", "de", "dor", "dri", "el", "en", "fa",
    "fen", "fi", "flo", "ga", "gle", "gor", "gru", "ha", "hib", "in", "jo", "ka", "kel", "kri",
    "la", "len", "li", "lo", "ma", "mer", "mi", "mon", "na", "ne", "nim", "no", "nu", "or",
    "pa", "pel", "pli", "po", "qua", "ra", "re", "rin", "ro", "sa", "sel", "shi", "sni", "so",
    "sta", "ta", "tel", "ti", "tro", "tu", "ul", "va", "ven", "vi", "vor", "wa", "wen", "wi",
    "xa", "yo", "za", "zel", "zo", "blor", "ang", "snor", "fle", "glim", "quix", "thra", "wum",
)
ENDINGS = ("", "", "", "n", "t", "s", "x", "ing", "er", "ish", "ness", "ology", "ium", "tion")
# fmt: on


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its one right answer."""

    question: str
    answer: str
    intent: str
    word: str = ""


Conversation = list[Turn]


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that conversations are drawn from."""

    facts: Sequence[Fact]
    unknown_words: Sequence[str]
    """Words that the model shall not know, the most often written first."""
    phrases: Sequence[str] = ()
    """Terms of several words."""
    foreign: dict[str, list[str]] = field(default_factory=dict)
    """Words by language."""
    not_sure_words: dict[str, None] = field(default_factory=dict)
    """Words that an earlier stage of the training made up a meaning for: a set with an order."""
    held_out: bool = False
    hardness: dict[tuple[str, str], float] = field(default_factory=dict)
    """Running loss of the answer for a word and an intent, where the training has seen it."""

    def phrasings(self, intent: str) -> tuple[str, ...]:
        """First questions for an intent, with a place for the word."""
        return (phrases.HELD_OUT if self.held_out else phrases.TRAINED)[intent]

    def follow_ups(self, intent: str) -> tuple[str, ...]:
        """Questions for an intent about the word before."""
        held_out = phrases.HELD_OUT_FOLLOW_UPS
        return (held_out if self.held_out else phrases.FOLLOW_UPS)[intent]


@dataclass(frozen=True, slots=True)
class Mention:
    """How a word is named in a question: as it is, in another form, or misspelt."""

    shown: str
    fact: Fact
    is_misspelt: bool = False

    def answer(self, intent: str) -> str:
        """The right answer, which says what a misspelt word was taken for."""
        answer = self.fact.answers()[intent]
        return did_you_mean(self.fact.word, answer) if self.is_misspelt else answer


def vary(question: str, rng: random.Random) -> str:
    """The same question as other people type it: marks left out, words around it."""
    if rng.random() < 0.35:
        question = question.rstrip("?.!")
    if rng.random() < 0.12:
        question = rng.choice(phrases.OPENINGS) + question
    if rng.random() < 0.12:
        question = question.rstrip("?.!") + rng.choice(phrases.CLOSINGS)
    if "'" in question and rng.random() < 0.3:
        question = question.replace("'", rng.choice(("", "\u2019")))
    return question


def plural(word: str) -> str:
    """The word as a question about many of its kind has it."""
    return word if word.endswith("s") else with_s(word)


def fill(template: str, words: Sequence[str], other: str = "") -> str:
    """A template with its places filled; each place of a word takes the next of `words`."""
    rest = iter(words)
    last = words[-1] if words else ""
    parts, position = [], 0
    for place in ("{w}", "{aw}", "{ws}"):
        assert place not in last
    while (start := template.find("{", position)) >= 0:
        end = template.index("}", start) + 1
        parts.append(template[position:start])
        name = template[start + 1 : end - 1]
        if name in ("y", "ay"):
            parts.append(with_article(other) if name == "ay" else other)
        else:
            word = next(rest, last)
            parts.append({"w": word, "aw": with_article(word), "ws": plural(word)}[name])
        position = end
    return "".join(parts) + template[position:]


def mention(fact: Fact, rng: random.Random) -> Mention:
    """A word as it is named in a question."""
    draw = rng.random()
    wrong = fact.misspellings
    if draw < MISSPELT and wrong:
        return Mention(rng.choice(wrong), fact, is_misspelt=True)
    if draw < MISSPELT + INFLECTED and fact.forms:
        return Mention(rng.choice(fact.forms), fact)
    return Mention(fact.word, fact)


def ask(material: Material, phrasing: str, shown: str, rng: random.Random, other: str = "") -> str:
    """Fills a phrasing with a word, now and then in quotes, and varies it."""
    is_bare = phrasing.rstrip("?") in ("{w}", "{aw}")
    if is_bare and shown.lower() in small_talk.SMALL_TALK_WORDS:
        phrasing = "Define {w}."
    if not is_bare and "{w}" in phrasing and rng.random() < 0.12 and not material.held_out:
        before, after = rng.choice(phrases.QUOTES)
        shown = f"{before}{shown}{after}"
    question = fill(phrasing, [shown], other)
    return question if material.held_out else vary(question, rng)


def made_up_word(rng: random.Random) -> str:
    """A word that sounds like one and is in no dictionary, as a rule; or letters at random."""
    if rng.random() < 0.15:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 9)))
    return "".join(rng.choices(SYLLABLES, k=rng.choice((2, 2, 3)))) + rng.choice(ENDINGS)


def draw_intent(material: Material, fact: Fact, rng: random.Random) -> str:
    """Any intent but the definition: what is hardest most often, if WordNet says something."""
    hardness = (material.hardness.get((fact.word, intent), 1.0) for intent in INTENT_WEIGHTS)
    weights = [w * (0.3 + h) for w, h in zip(INTENT_WEIGHTS.values(), hardness, strict=True)]
    while True:
        intent = rng.choices(list(INTENT_WEIGHTS), weights)[0]
        if fact.is_known(intent) or rng.random() < ABSENT_FACT_FRACTION:
            return intent


def compared_with(material: Material, fact: Fact, rng: random.Random) -> str:
    """What "is a whale a ...?" asks for: what it is a kind of, or anything else."""
    if fact.kind and rng.random() < 0.4:
        return fact.kind
    other = rng.choice(material.facts)
    return other.kind if other.kind and rng.random() < 0.5 else other.word


def first_turn(material: Material, fact: Fact, intent: str, rng: random.Random) -> Turn:
    """A question that names its word."""
    named = mention(fact, rng)
    return turn_about(material, named, intent, rng.choice(material.phrasings(intent)), rng)


def turn_about(
    material: Material, named: Mention, intent: str, phrasing: str, rng: random.Random
) -> Turn:
    """A question by a phrasing, with its answer."""
    other = compared_with(material, named.fact, rng)
    question = ask(material, phrasing, named.shown, rng, other)
    answered = intent
    if "{y}" in phrasing or "{ay}" in phrasing:
        answered = "kind" if named.fact.kind else "definition"
    return Turn(question, named.answer(answered), intent, named.fact.word)


def follow_up_turn(material: Material, fact: Fact, intent: str, rng: random.Random) -> Turn:
    """A question about the word of the turn before."""
    phrasing = rng.choice(material.follow_ups(intent))
    question = vary(fill(phrasing, [], compared_with(material, fact, rng)), rng)
    answered = "definition" if "{ay}" in phrasing and not fact.kind else intent
    return Turn(question, fact.answers()[answered], intent, fact.word)


def definition_then_more(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """The meaning first, then one to three more questions about the same word."""
    conversation = [first_turn(material, fact, "definition", rng)]
    intents = sorted({draw_intent(material, fact, rng) for _ in range(rng.choice((1, 1, 2, 3)))})
    rng.shuffle(intents)
    return conversation + [follow_up_turn(material, fact, intent, rng) for intent in intents]


def other_first(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """A question that is not for the meaning, now and then followed by others."""
    conversation = [first_turn(material, fact, draw_intent(material, fact, rng), rng)]
    if rng.random() < 0.4:
        intent = "definition" if rng.random() < 0.6 else draw_intent(material, fact, rng)
        conversation.append(follow_up_turn(material, fact, intent, rng))
    return conversation


def chain(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """One intent, several words: "What does ocean mean?", "And river?"; now and then unknown."""
    intent = rng.choice(("definition", "definition", draw_intent(material, fact, rng)))
    conversation = [first_turn(material, fact, intent, rng)]
    for _ in range(rng.choice((1, 2))):
        phrasing = rng.choice(phrases.SAME_INTENT)
        if rng.random() < 0.12:
            conversation.append(unknown_turn(material, phrasing, rng))
            continue
        named = mention(rng.choice(material.facts), rng)
        conversation.append(turn_about(material, named, intent, phrasing, rng))
        if rng.random() < 0.3:
            other = draw_intent(material, named.fact, rng)
            conversation.append(follow_up_turn(material, named.fact, other, rng))
            break
    return conversation


def unknown_answer(material: Material, word: str) -> str:
    """The answer for a word outside the lexicon: one of several, by its first letter."""
    if word in material.not_sure_words:
        return small_talk.NOT_SURE.format(w=word)
    answers = small_talk.UNKNOWN
    return answers[ord(word[0].lower()) % len(answers)].format(w=word)


def unknown_word(material: Material, rng: random.Random) -> str:
    """A word that the model shall not know: rare, a name, made up, or one of grammar."""
    draw = rng.random()
    if draw < 0.22:
        return made_up_word(rng)
    if draw < 0.25 and not material.held_out:
        return rng.choice(sorted(FUNCTION_WORDS - small_talk.SMALL_TALK_WORDS))
    if draw < 0.50 and material.not_sure_words:
        return rng.choice(list(material.not_sure_words))
    # Words just outside the lexicon are asked about most, and are the likeliest to be made up.
    return material.unknown_words[int(len(material.unknown_words) * rng.random() ** 2)]


def unknown_turn(material: Material, phrasing: str, rng: random.Random) -> Turn:
    """A question about a word outside the lexicon."""
    word = unknown_word(material, rng)
    question = ask(material, phrasing, word, rng, rng.choice(material.facts).word)
    return Turn(question, unknown_answer(material, word), "unknown", word)


def unknown(material: Material, rng: random.Random) -> Conversation:
    """A question about a word that the model shall not know, now and then followed by others."""
    weights = {"definition": 30, **INTENT_WEIGHTS}
    intent = rng.choices(list(weights), list(weights.values()))[0]
    first = unknown_turn(material, rng.choice(material.phrasings(intent)), rng)
    if material.held_out or rng.random() < 0.75:
        return [first]
    if rng.random() < 0.5:
        question = vary(fill(rng.choice(material.follow_ups("synonyms")), []), rng)
        return [first, Turn(question, small_talk.UNKNOWN[1], "unknown", first.word)]
    fact = rng.choice(material.facts)
    return [first, first_turn(material, fact, "definition", rng)]


def _filled_talk(material: Material, template: str, rng: random.Random) -> str:
    """A question that is not about a word, with its numbers, names, places and words."""
    while (start := template.find("{")) >= 0:
        end = template.find("}", start) + 1
        name = template[start + 1 : end - 1]
        if name in ("w", "aw", "ws"):
            word = rng.choice(material.facts).word
            value = fill(template[start:end], [word])
        elif name == "gloss":
            value = rng.choice(material.facts).gloss
        else:
            values = {
                "n": str(rng.randint(0, rng.choice((12, 99, 2030)))),
                "m": str(rng.randint(1, rng.choice((12, 99)))),
                "place": rng.choice(small_talk.PLACES),
                "name": rng.choice(small_talk.NAMES),
                "letter": rng.choice("abcdefghijklmnopqrstuvwxyz"),
            }
            if name not in values:  # braces that people type
                return template
            value = values[name]
        template = template[:start] + value + template[end:]
    return template


def rounded(count: int) -> str:
    """A count of words as people say it: in thousands, where there are that many."""
    return f"{count // 1000 * 1000 or count:,}"


def talk_turn(material: Material, table: small_talk.Table, intent: str, rng: random.Random) -> Turn:
    """A question that is not about a word, and what the model says to it."""
    answer, questions = rng.choice(table)
    question = _filled_talk(material, rng.choice(questions), rng)
    if answer != small_talk.NOT_ONE_WORD and not material.held_out:
        question = vary(question, rng)
    return Turn(question, answer.format(count=rounded(len(material.facts))), intent)


def refused(material: Material, rng: random.Random) -> Conversation:
    """A question that is not about words; now and then one about a word before or behind it."""
    table = small_talk.HELD_OUT_REFUSED if material.held_out else small_talk.REFUSED
    turn = talk_turn(material, table, "refused", rng)
    if material.held_out or rng.random() < 0.75 or turn.answer == small_talk.NOT_ONE_WORD:
        return [turn]
    word = first_turn(material, rng.choice(material.facts), "definition", rng)
    return [turn, word] if rng.random() < 0.5 else [word, turn]


def small_talk_first(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """Greetings, thanks and questions about itself, now and then followed by a word."""
    table = small_talk.HELD_OUT_SMALL_TALK if material.held_out else small_talk.SMALL_TALK
    opening = talk_turn(material, table, "small_talk", rng)
    if material.held_out or rng.random() < 0.5:
        return [opening]
    word = first_turn(material, fact, "definition", rng)
    return [opening, word] if rng.random() < 0.5 else [word, opening]


def task(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """A task about a word that is not for this model: it explains the word instead."""
    table = phrases.HELD_OUT_TASKS if material.held_out else phrases.TASKS
    question = ask(material, rng.choice(table), fact.word, rng)
    answer = f"I only explain words. {fact.answers()['definition']}"
    return [Turn(question, answer, "task", fact.word)]


def phrase(material: Material, rng: random.Random) -> Conversation:
    """A question about a term of several words, which the model does not know."""
    words = rng.choice(material.phrases) if material.phrases else "body of water"
    question = ask(material, rng.choice(material.phrasings("definition")), words, rng)
    return [Turn(question, small_talk.ONE_AT_A_TIME, "refused")]


def statement(material: Material, rng: random.Random) -> Conversation:
    """Sentences that ask for nothing, a few words or a whole page."""
    count = rng.choice((1, 1, 1, 2, 4, 8))
    examples = [rng.choice(material.facts).example for _ in range(count)]
    text = ". ".join(filter(None, examples)) or "the water is cold"
    if rng.random() < 0.3:
        text = " ".join(rng.choice(material.facts).word for _ in range(rng.randint(2, 5)))
    return [Turn(text, small_talk.NOT_ONE_WORD, "refused")]


def foreign(material: Material, rng: random.Random) -> Conversation:
    """A question in another language, or words of one."""
    if not material.foreign or rng.random() < 0.4:
        return [Turn(rng.choice(small_talk.FOREIGN), small_talk.UNKNOWN_LANGUAGE, "refused")]
    words = material.foreign[rng.choice(sorted(material.foreign))]
    text = " ".join(rng.choices(words, k=rng.randint(3, 7)))
    return [Turn(vary(text + "?", rng), small_talk.UNKNOWN_LANGUAGE, "refused")]


def draw(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """One conversation; `fact` is the word it begins with, where it is about a known word."""
    plan = rng.choices(list(PLAN_WEIGHTS), list(PLAN_WEIGHTS.values()))[0]
    if plan in ("definition", "everything"):
        return [first_turn(material, fact, plan, rng)]
    about_fact = {
        "definition_then_more": definition_then_more,
        "other": other_first,
        "chain": chain,
        "small_talk": small_talk_first,
        "task": task,
    }
    if plan in about_fact:
        return about_fact[plan](material, fact, rng)
    others = {
        "unknown": unknown,
        "refused": refused,
        "phrase": phrase,
        "statement": statement,
        "foreign": foreign,
    }
    return others[plan](material, rng)
