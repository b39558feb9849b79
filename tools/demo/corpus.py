"""Builds what the model is trained on, calibrated with and scored on.

`python -m tools.demo.corpus` writes the lexicon, the words nobody is trained on, the calibration
text and the held-out questions.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import small_talk
from .conversations import (
    INTENT_WEIGHTS,
    Conversation,
    Material,
    Mention,
    Turn,
    draw,
    draw_intent,
    follow_up_turn,
    refused,
    small_talk_first,
    task,
    turn_about,
    unknown,
)
from .frequency import english_frequencies, foreign_words
from .inflection import read_irregular
from .lexicon import Fact, find_words, make_lexicon, more_facts, rare_words, unlisted_words
from .wordnet import WordNet, licence

HELD_OUT_FRACTION = 0.1
"""Of the words that the model shall not know."""
FOREIGN_WORDS = 400
UNLISTED_WORDS = 30_000
SEED = 20
WORDS = 4500
ASKED_FACTS = "asked_facts.jsonl"


def plainly(material: Material, fact: Fact, rng: random.Random, intent: str) -> Turn:
    """A question that names its word as it is."""
    phrasing = rng.choice(material.phrasings(intent))
    return turn_about(material, Mention(fact.word, fact), intent, phrasing, rng)


def named_otherwise(
    material: Material, rng: random.Random, misspelt: bool, count: int
) -> list[Conversation]:
    """Questions for the meaning of words that are misspelt, or in another form."""
    usable = [f for f in material.facts if (f.misspellings if misspelt else f.forms)]
    conversations = []
    for fact in rng.sample(usable, min(count, len(usable))):
        shown = rng.choice(fact.misspellings if misspelt else fact.forms)
        named = Mention(shown, fact, misspelt)
        phrasing = rng.choice(material.phrasings("definition"))
        turn = turn_about(material, named, "definition", phrasing, rng)
        conversations.append([replace(turn, intent="misspelt_word" if misspelt else "other_form")])
    return conversations


def capitalised(material: Material, rng: random.Random) -> Turn:
    """A definition asked for with a capital in front of the word."""
    fact = rng.choice(material.facts)
    phrasing = rng.choice(material.phrasings("definition"))
    named = Mention(fact.word.capitalize(), fact)
    turn = turn_about(material, named, "definition", phrasing, rng)
    return replace(turn, intent="capitalised_word")


def held_out_conversations(material: Material, rng: random.Random) -> list[Conversation]:
    """Questions in phrasings never trained on: 1,500 definitions, 1,000 unknown words, others."""
    facts = rng.sample(list(material.facts), min(1500, len(material.facts)))
    conversations = [[plainly(material, fact, rng, "definition")] for fact in facts]
    conversations += [unknown(material, rng) for _ in range(1000)]
    for intent in INTENT_WEIGHTS:
        usable = [fact for fact in material.facts if fact.is_known(intent)] or material.facts
        drawn = rng.choices(usable, k=80)
        conversations += [[plainly(material, fact, rng, intent)] for fact in drawn]
    for fact in rng.choices(material.facts, k=300):
        conversations.append(
            [
                plainly(material, fact, rng, "definition"),
                follow_up_turn(material, fact, draw_intent(material, fact, rng), rng),
            ]
        )
    conversations += [small_talk_first(material, facts[0], rng) for _ in range(40)]
    conversations += [refused(material, rng) for _ in range(200)]
    conversations += [task(material, rng.choice(material.facts), rng) for _ in range(40)]
    for misspelt in (False, True):
        conversations += named_otherwise(material, rng, misspelt, 150)
    return conversations + [[capitalised(material, rng)] for _ in range(100)]


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
    """Words that the model shall not know: those trained on, and those held out, in their order."""
    shuffled = rng.sample(words, len(words))
    held_out_count = max(1, int(len(words) * HELD_OUT_FRACTION))
    held_out = set(shuffled[:held_out_count])
    return [w for w in words if w not in held_out], [w for w in words if w in held_out]


def by_frequency(words: Iterable[str], frequencies: Mapping[str, float]) -> list[str]:
    """Each word once, the most often written first; then a to z."""
    return sorted(set(words), key=lambda word: (-frequencies.get(word, 0.0), word))


def write_lines(path: Path, records: Sequence[object]) -> None:
    """Writes strings as they are and everything else as JSON, one a line."""
    lines = (r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_lines(path: Path) -> list[str]:
    """Lines of a file that need not be there."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def load_asked_facts(folder: Path) -> list[Fact]:
    """All that the lexicon had before a calibration took out what the model did not learn."""
    asked = folder / ASKED_FACTS
    lines = read_lines(asked if asked.exists() else folder / "facts.jsonl")
    return [Fact.from_dict(json.loads(line)) for line in lines]


def load_material(folder: Path) -> Material:
    """What the trainer draws from, as `build` wrote it."""
    facts = [Fact.from_dict(json.loads(line)) for line in read_lines(folder / "facts.jsonl")]
    return Material(
        facts=facts,
        unknown_words=read_lines(folder / "unknown.txt"),
        phrases=read_lines(folder / "phrases.txt"),
        foreign=json.loads((folder / "foreign.json").read_text(encoding="utf-8")),
        not_sure_words=dict.fromkeys(read_lines(folder / "not_sure.txt")),
    )


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the corpus comes from: WordNet's folder, and what wordfreq says of words."""

    wordnet: Path
    frequencies: dict[str, float]
    foreign: dict[str, list[str]]


def usual_sources(wordnet: Path) -> Sources:
    """WordNet as Debian installs it, and the words of wordfreq."""
    foreign = foreign_words(small_talk.LANGUAGES, FOREIGN_WORDS)
    return Sources(wordnet, dict(english_frequencies()), foreign)


def write_questions(folder: Path, material: Material, seed: int) -> None:
    """Writes the questions that follow from the facts: for calibration, and held out."""
    rng = random.Random(f"questions-{seed}")
    calibration = [draw(material, rng.choice(material.facts), rng) for _ in range(2000)]
    write_lines(folder / "calibration.jsonl", [messages(c) for c in calibration])
    held_out = read_lines(folder / "unknown_held_out.txt")
    scored = replace(material, unknown_words=held_out, not_sure_words={}, held_out=True)
    conversations = held_out_conversations(scored, rng)
    write_lines(folder / "heldout.jsonl", [held_out_record(c) for c in conversations])


def write_facts(folder: Path, facts: Sequence[Fact]) -> None:
    """Writes what the model shall know, and the list of its words."""
    write_lines(folder / "facts.jsonl", [asdict(fact) for fact in facts])
    write_lines(folder / "words.txt", [fact.word for fact in facts])


def build(
    sources: Sources, folder: Path, words: int, seed: int, with_more: bool = False
) -> Material:
    """Writes the corpus folder, the same bytes for the same seed, and returns what to draw from.

    `with_more` adds the words that are as common and whose definition is long, behind the others.
    """
    rng = random.Random(seed)
    net = WordNet(sources.wordnet)
    found = find_words(net, sources.frequencies, read_irregular(sources.wordnet))
    facts = make_lexicon(found, words)
    if with_more:
        facts += more_facts(found, facts)
    unlisted = unlisted_words(found, facts, UNLISTED_WORDS)
    outside = by_frequency([*rare_words(found, facts), *unlisted], sources.frequencies)
    trained, held_out = split_unknown(outside, rng)
    several = sorted(set(net.phrases))
    material = Material(facts, trained, several, sources.foreign)
    folder.mkdir(parents=True, exist_ok=True)
    write_facts(folder, facts)
    for name in ("not_sure.txt", ASKED_FACTS):  # of an earlier calibration
        (folder / name).unlink(missing_ok=True)
    write_lines(folder / "unknown.txt", trained)
    write_lines(folder / "unknown_held_out.txt", held_out)
    write_lines(folder / "phrases.txt", several)
    write_lines(folder / "foreign.json", [sources.foreign])
    (folder / "WORDNET-LICENSE.txt").write_text(licence(sources.wordnet), encoding="utf-8")
    write_questions(folder, material, seed)
    return material


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--out", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--words", type=int, default=WORDS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--more", action="store_true", help="also common words with long glosses")
    args = parser.parse_args()
    sources = usual_sources(args.wordnet)
    material = build(sources, args.out, args.words, args.seed, args.more)
    print(f"{len(material.facts)} words, {len(material.unknown_words)} unknown, in {args.out}")


if __name__ == "__main__":
    main()
