"""The corpus builder on a WordNet of five words, written here."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tools.demo import phrases
from tools.demo.corpus import Material, build, draw, load_material, vary
from tools.demo.lexicon import make_fact, make_lexicon, rare_words, short_gloss
from tools.demo.wordnet import WordNet

LICENCE = "  1 This is the licence.  \n  2 All of it.  \n"
DATA_NOUN = (
    "00000010 17 n 02 ocean 0 main 0 001 @ 00000020 n 0000 | a large body of water; "
    '"the ocean is deep"  \n'
    "00000020 17 n 01 body_of_water 0 000 | the part of the earth covered with water  \n"
    "00000030 03 n 01 gulper 0 000 | a fish nobody tagged  \n"
)
DATA_ADJ = (
    '00000040 00 a 01 big 0 001 ! 00000050 a 0101 | above average in size; "a big house"  \n'
    "00000050 00 a 02 little 0 small 0 001 ! 00000040 a 0101 | below average in size  \n"
)
INDEX_NOUN = (
    "body_of_water n 1 0 1 1 00000020  \n"
    "gulper n 1 0 1 0 00000030  \n"
    "main n 1 0 1 0 00000010  \n"
    "ocean n 1 1 @ 1 1 00000010  \n"
)
INDEX_ADJ = "big a 1 1 ! 1 1 00000040  \nlittle a 1 1 ! 1 1 00000050  \n"
COUNTS = "ocean%1:17:00:: 1 8\nbig%3:00:01:: 1 90\nlittle%3:00:03:: 1 80\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "data.noun": LICENCE + DATA_NOUN,
        "data.adj": LICENCE + DATA_ADJ,
        "index.noun": LICENCE + INDEX_NOUN,
        "index.adj": LICENCE + INDEX_ADJ,
        "cntlist.rev": COUNTS,
    }
    for name in ("data.verb", "data.adv", "index.verb", "index.adv"):
        files[name] = LICENCE
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_facts_of_one_word(folder: Path) -> None:
    fact = make_fact(WordNet(folder), "ocean")
    assert fact is not None
    assert fact.answers() == {
        "definition": "ocean (noun): a large body of water",
        "part_of_speech": "ocean is a noun.",
        "synonyms": "Another word for ocean: main.",
        "opposite": "I know no opposite of ocean.",
        "kind": "ocean is a kind of body of water.",
        "example": "For example: the ocean is deep",
    }


def test_opposites_go_by_word_and_not_by_synset(folder: Path) -> None:
    net = WordNet(folder)
    little = make_fact(net, "little")
    assert little is not None
    assert little.opposite == "big"
    small = net.synset("a", 50)
    assert small.words == ("little", "small")


def test_the_most_frequent_words_come_first(folder: Path) -> None:
    net = WordNet(folder)
    facts = make_lexicon(net, 3)
    assert [fact.word for fact in facts] == ["big", "little", "ocean"]
    assert rare_words(net, facts) == ["gulper", "main"]


@pytest.mark.parametrize(
    ("gloss", "short"),
    [
        ("a large body of water; salty", "a large body of water"),
        ('(geometry) a figure; "a nice figure"', "a figure"),
        ("one " * 14 + "end, and a tail that is cut", "one " * 14 + "end"),
        ("word " * 17, ""),
    ],
)
def test_glosses_are_cut_cleanly_or_not_used(gloss: str, short: str) -> None:
    assert short_gloss(gloss) == short


def test_building_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    material = build(folder, tmp_path / "one", words=3, seed=1)
    build(folder, tmp_path / "two", words=3, seed=1)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert load_material(tmp_path / "one") == material
    record = json.loads((tmp_path / "one" / "heldout.jsonl").read_text().splitlines()[0])
    assert set(record) == {"messages", "expected", "intent", "word"}
    assert record["messages"][-1]["role"] == "user"
    licence = (tmp_path / "one" / "WORDNET-LICENSE.txt").read_text()
    assert licence == "This is the licence.\nAll of it.\n"


def bare(text: str) -> str:
    return text.lower().rstrip("?.!")


def test_no_held_out_phrasing_is_ever_trained_on() -> None:
    trained = {
        bare(text)
        for table in (phrases.TRAINED, phrases.FOLLOW_UPS, dict(phrases.SMALL_TALK))
        for texts in table.values()
        for text in texts
    }
    held_out = {
        bare(text)
        for table in (
            phrases.HELD_OUT,
            phrases.HELD_OUT_FOLLOW_UPS,
            dict(phrases.HELD_OUT_SMALL_TALK),
        )
        for texts in table.values()
        for text in texts
    }
    assert not trained & held_out
    assert len(set(phrases.TRAINED["definition"])) >= 16
    assert len(phrases.HELD_OUT["definition"]) >= 4


def test_every_conversation_asks_and_answers(folder: Path) -> None:
    facts = make_lexicon(WordNet(folder), 3)
    material = Material(facts, ["gulper", "main"])
    rng = random.Random(5)
    for _ in range(300):
        for turn in draw(material, facts[0], rng):
            assert turn.question
            assert turn.answer
            assert "{" not in turn.question
            assert turn.intent != "unknown" or turn.answer == f"I don't know the word {turn.word}."


def test_a_question_in_a_hurry_keeps_its_words() -> None:
    rng = random.Random(2)
    seen = {vary("What does ocean mean?", rng) for _ in range(100)}
    assert {text.lower().rstrip("?") for text in seen} == {"what does ocean mean"}
    assert len(seen) == 4
