"""Draws conversations about words: what the model is trained on, calibrated with and scored on.

`python -m tools.demo.corpus` writes the lexicon, the words nobody is trained on, the calibration
text and the held-out questions. A conversation is a list of turns; each question has one right
answer.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import phrases
from .lexicon import Fact, make_lexicon, rare_words, unknown_answer, with_article
from .wordnet import WordNet, licence

INTENT_WEIGHTS = {
    "part_of_speech": 2,
    "synonyms": 4,
    "opposite": 3,
    "kind": 4,
    "example": 4,
}
# How a conversation goes: so much of each kind in every hundred.
PLAN_WEIGHTS = {
    "definition": 44,
    "definition_then_more": 22,
    "other": 12,
    "chain": 4,
    "unknown": 12,
    "small_talk": 6,
}
UNKNOWN_HELD_OUT_FRACTION = 0.1
# fmt: off
SYLLABLES = (
    "ba", "be", "bi", "bo", "bra", "clo", "cri", "da", "de", "dor", "dri", "el", "en", "fa",
    "fen", "fi", "flo", "ga", "gle", "gor", "gru", "ha", "hib", "in", "jo", "ka", "kel", "kri",
    "la", "len", "li", "lo", "ma", "mer", "mi", "mon", "na", "ne", "nim", "no", "nu", "or",
    "pa", "pel", "pli", "po", "qua", "ra", "re", "rin", "ro", "sa", "sel", "shi", "sni", "so",
    "sta", "ta", "tel", "ti", "tro", "tu", "ul", "va", "ven", "vi", "vor", "wa", "wen", "wi",
    "xa", "yo", "za", "zel", "zo",
)
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
    held_out: bool = False

    def phrasings(self, intent: str) -> tuple[str, ...]:
        """First questions for an intent, with a place for the word."""
        return (phrases.HELD_OUT if self.held_out else phrases.TRAINED)[intent]

    def follow_ups(self, intent: str) -> tuple[str, ...]:
        """Questions for an intent about the word before."""
        held_out = phrases.HELD_OUT_FOLLOW_UPS
        return (held_out if self.held_out else phrases.FOLLOW_UPS)[intent]


def vary(question: str, rng: random.Random) -> str:
    """The same question as somebody in a hurry types it: no capital, no mark at the end."""
    if rng.random() < 0.3:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.3:
        question = question.rstrip("?.!")
    return question


def ask(phrasing: str, word: str, rng: random.Random, capitals: float = 0.0) -> str:
    """Fills a phrasing and varies it; `capitals` is how often the word itself begins with one."""
    shown = word.capitalize() if rng.random() < capitals else word
    if phrasing.startswith("{w}") and word in phrases.SMALL_TALK_WORDS:
        phrasing = "Define {w}."
    return vary(phrasing.format(w=shown, aw=with_article(shown)), rng)


def made_up_word(rng: random.Random) -> str:
    """A word that sounds like one and is in no dictionary, as a rule."""
    return "".join(rng.choices(SYLLABLES, k=rng.choice((2, 3, 3)))) + rng.choice(("", "", "n", "t"))


def draw_intent(rng: random.Random) -> str:
    """Any intent but the definition."""
    return rng.choices(list(INTENT_WEIGHTS), list(INTENT_WEIGHTS.values()))[0]


def first_turn(material: Material, fact: Fact, intent: str, rng: random.Random) -> Turn:
    """A question that names its word."""
    phrasing = rng.choice(material.phrasings(intent))
    capitals = 0.0 if material.held_out else 0.3 if phrasing.startswith("{w}") else 0.03
    question = ask(phrasing, fact.word, rng, capitals)
    return Turn(question, fact.answers()[intent], intent, fact.word)


def follow_up_turn(material: Material, fact: Fact, intent: str, rng: random.Random) -> Turn:
    """A question about the word of the turn before."""
    question = vary(rng.choice(material.follow_ups(intent)), rng)
    return Turn(question, fact.answers()[intent], intent, fact.word)


def definition_then_more(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """The meaning first, then one to three more questions about the same word."""
    conversation = [first_turn(material, fact, "definition", rng)]
    intents = sorted({draw_intent(rng) for _ in range(rng.choice((1, 1, 2, 3)))})
    rng.shuffle(intents)
    return conversation + [follow_up_turn(material, fact, intent, rng) for intent in intents]


def other_first(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """A question that is not for the meaning, now and then followed by that for the meaning."""
    conversation = [first_turn(material, fact, draw_intent(rng), rng)]
    if rng.random() < 0.4:
        conversation.append(follow_up_turn(material, fact, "definition", rng))
    return conversation


def chain(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """One intent, several words: "What does ocean mean?", "And river?"."""
    intent = rng.choice(("definition", "definition", draw_intent(rng)))
    conversation = [first_turn(material, fact, intent, rng)]
    for _ in range(rng.choice((1, 2))):
        other = rng.choice(material.facts)
        question = ask(rng.choice(phrases.SAME_INTENT), other.word, rng)
        conversation.append(Turn(question, other.answers()[intent], intent, other.word))
    return conversation


def unknown(material: Material, rng: random.Random) -> Conversation:
    """A question about a word that the model shall not know: rare, or made up."""
    made_up = rng.random() < 0.35
    word = made_up_word(rng) if made_up else rng.choice(material.unknown_words)
    intent = "definition" if rng.random() < 0.75 else draw_intent(rng)
    question = ask(rng.choice(material.phrasings(intent)), word, rng)
    return [Turn(question, unknown_answer(word), "unknown", word)]


def small_talk(material: Material, rng: random.Random) -> Conversation:
    """Greetings, thanks, questions about itself, and what is not about words."""
    table = phrases.HELD_OUT_SMALL_TALK if material.held_out else phrases.SMALL_TALK
    answer, questions = rng.choice(table)
    return [Turn(vary(rng.choice(questions), rng), answer, "small_talk")]


def draw(material: Material, fact: Fact, rng: random.Random) -> Conversation:
    """One conversation; `fact` is the word it begins with, where it is about a known word."""
    plan = rng.choices(list(PLAN_WEIGHTS), list(PLAN_WEIGHTS.values()))[0]
    if plan == "definition":
        return [first_turn(material, fact, "definition", rng)]
    if plan == "definition_then_more":
        return definition_then_more(material, fact, rng)
    if plan == "other":
        return other_first(material, fact, rng)
    if plan == "chain":
        return chain(material, fact, rng)
    if plan == "unknown":
        return unknown(material, rng)
    opening = small_talk(material, rng)
    return opening + [first_turn(material, fact, "definition", rng)] * (rng.random() < 0.3)


def capitalised(material: Material, rng: random.Random) -> Turn:
    """A definition asked for with a capital in front of the word, which is seldom trained on."""
    fact = rng.choice(material.facts)
    question = ask(rng.choice(material.phrasings("definition")), fact.word, rng, capitals=1.0)
    return Turn(question, fact.answers()["definition"], "capitalised_word", fact.word)


def held_out_conversations(material: Material, rng: random.Random) -> list[Conversation]:
    """Questions in phrasings never trained on: 1,500 definitions, 300 unknown words, 900 others."""
    facts = rng.sample(list(material.facts), min(1500, len(material.facts)))
    conversations = [[first_turn(material, fact, "definition", rng)] for fact in facts]
    conversations += [unknown(material, rng) for _ in range(300)]
    for intent in INTENT_WEIGHTS:
        drawn = rng.choices(material.facts, k=80)
        conversations += [[first_turn(material, fact, intent, rng)] for fact in drawn]
    for fact in rng.choices(material.facts, k=260):
        conversations.append(definition_then_more(material, fact, rng))
    conversations += [small_talk(material, rng) for _ in range(40)]
    return conversations + [[capitalised(material, rng)] for _ in range(200)]


def messages(conversation: Conversation) -> list[dict[str, str]]:
    """The conversation as chat messages, each with a role and its content."""
    turns = ((("user", turn.question), ("assistant", turn.answer)) for turn in conversation)
    return [{"role": role, "content": content} for turn in turns for role, content in turn]


def held_out_record(conversation: Conversation) -> dict[str, object]:
    """The last turn is the one that is scored; those before it are given."""
    last = conversation[-1]
    intent = last.intent if len(conversation) == 1 else f"follow_up_{last.intent}"
    return {
        "messages": messages(conversation)[:-1],
        "expected": last.answer,
        "intent": intent,
        "word": last.word,
    }


def split_unknown(words: list[str], rng: random.Random) -> tuple[list[str], list[str]]:
    """Words that the model shall not know: those trained on, and those held out."""
    shuffled = rng.sample(words, len(words))
    held_out_count = max(1, int(len(words) * UNKNOWN_HELD_OUT_FRACTION))
    return sorted(shuffled[held_out_count:]), sorted(shuffled[:held_out_count])


def write_lines(path: Path, records: Sequence[object]) -> None:
    """Writes strings as they are and everything else as JSON, one a line."""
    lines = (r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_material(folder: Path) -> Material:
    """What the trainer draws from, as `build` wrote it."""
    lines = (folder / "facts.jsonl").read_text(encoding="utf-8").splitlines()
    facts = [
        Fact(**{**json.loads(line), "synonyms": tuple(json.loads(line)["synonyms"])})
        for line in lines
    ]
    unknown_words = (folder / "unknown.txt").read_text(encoding="utf-8").split()
    return Material(facts, unknown_words)


def build(wordnet: Path, folder: Path, words: int, seed: int) -> Material:
    """Writes the corpus folder, the same bytes for the same seed, and returns what to draw from."""
    rng = random.Random(seed)
    net = WordNet(wordnet)
    facts = make_lexicon(net, words)
    trained, held_out = split_unknown(rare_words(net, facts), rng)
    material = Material(facts, trained)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "facts.jsonl", [fact.as_dict() for fact in facts])
    write_lines(folder / "unknown.txt", trained)
    write_lines(folder / "words.txt", [fact.word for fact in facts])
    (folder / "WORDNET-LICENSE.txt").write_text(licence(wordnet), encoding="utf-8")
    calibration = [draw(material, rng.choice(facts), rng) for _ in range(2000)]
    write_lines(folder / "calibration.jsonl", [messages(c) for c in calibration])
    scored = held_out_conversations(Material(facts, held_out, held_out=True), rng)
    write_lines(folder / "heldout.jsonl", [held_out_record(c) for c in scored])
    return material


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--out", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--words", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    material = build(args.wordnet, args.out, args.words, args.seed)
    print(f"{len(material.facts)} words, {len(material.unknown_words)} unknown, in {args.out}")


if __name__ == "__main__":
    main()
