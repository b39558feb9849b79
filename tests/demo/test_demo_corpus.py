"""The corpus builder on a WordNet of five words, written here."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tools.demo import phrases, small_talk
from tools.demo.conversations import Material, Mention, draw, fill, unknown_answer, vary
from tools.demo.corpus import Sources, build, load_material
from tools.demo.inflection import inflected_forms, read_irregular
from tools.demo.judge import is_refusal, judge, says_unknown
from tools.demo.lexicon import (
    Fact,
    Words,
    find_words,
    make_fact,
    make_lexicon,
    rare_words,
    short_gloss,
    unlisted_words,
    with_article,
)
from tools.demo.misspelling import misspellings
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
FREQUENCIES = {"big": 9e-4, "oceans": 2e-6, "little": 8e-4, "ocean": 1e-4, "zorbly": 1e-5}
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
    files["noun.exc"] = "oxen ox\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def sources(folder: Path) -> Sources:
    return Sources(folder, FREQUENCIES, {"xx": ["bon", "jour", "monde"]})


def words_of(folder: Path) -> Words:
    return find_words(WordNet(folder), FREQUENCIES, read_irregular(folder))


def test_facts_of_one_word(folder: Path) -> None:
    fact = make_fact(WordNet(folder), "ocean")
    assert fact is not None
    assert fact.answers() == {
        "definition": "ocean (noun): a large body of water",
        "part_of_speech": "ocean is a noun.",
        "synonyms": "I know no synonym of ocean.",
        "opposite": "I know no opposite of ocean.",
        "kind": "ocean is a kind of body of water.",
        "example": "For example: the ocean is deep",
        "spelling": "It is spelled ocean.",
        "everything": "ocean (noun): a large body of water. ocean is a kind of body of water. "
        "For example: the ocean is deep",
    }


def test_opposites_go_by_word_and_not_by_synset(folder: Path) -> None:
    net = WordNet(folder)
    little = make_fact(net, "little")
    assert little is not None
    assert little.opposite == "big"
    small = net.synset("a", 50)
    assert small.words == ("little", "small")


def test_the_most_frequent_words_come_first(folder: Path) -> None:
    words = words_of(folder)
    facts = make_lexicon(words, 3)
    assert [fact.word for fact in facts] == ["big", "little", "ocean"]
    assert facts[2].forms == ("oceans",)
    assert rare_words(words, facts) == ["gulper", "main"]
    assert unlisted_words(words, facts, 10) == ["zorbly"]


@pytest.mark.parametrize(
    ("gloss", "short"),
    [
        ("a large body of water; salty", "a large body of water"),
        ('(geometry) a figure; "a nice figure"', "a figure"),
        ("one " * 14 + "end, and a tail that is cut", "one " * 14 + "end"),
        ("one " * 14 + "end that " + "is cut " * 4, "one " * 14 + "end"),
        ("word " * 19, ""),
    ],
)
def test_glosses_are_cut_cleanly_or_not_used(gloss: str, short: str) -> None:
    assert short_gloss(gloss) == short


def test_building_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    material = build(sources(folder), tmp_path / "one", words=3, seed=1)
    build(sources(folder), tmp_path / "two", words=3, seed=1)
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


def questions(*tables: object) -> set[str]:
    found = set()
    for table in tables:
        pairs = table.items() if isinstance(table, dict) else table
        found |= {bare(text) for _, texts in pairs for text in texts}  # type: ignore[attr-defined]
    return found


def test_no_held_out_phrasing_is_ever_trained_on() -> None:
    trained = questions(
        phrases.TRAINED, phrases.FOLLOW_UPS, small_talk.SMALL_TALK, small_talk.REFUSED
    )
    held_out = questions(
        phrases.HELD_OUT,
        phrases.HELD_OUT_FOLLOW_UPS,
        small_talk.HELD_OUT_SMALL_TALK,
        small_talk.HELD_OUT_REFUSED,
    )
    assert not (trained | set(map(bare, phrases.TASKS))) & (
        held_out | set(map(bare, phrases.HELD_OUT_TASKS))
    )
    assert len(set(phrases.TRAINED["definition"])) >= 60
    assert len(phrases.HELD_OUT["definition"]) >= 4


def test_every_conversation_asks_and_answers(folder: Path) -> None:
    facts = make_lexicon(words_of(folder), 3)
    material = Material(facts, ["gulper", "main"], ["body of water"], {"xx": ["bon", "jour"]})
    by_word = {fact.word: fact for fact in facts}
    rng = random.Random(5)
    seen = set()
    for _ in range(1500):
        for turn in draw(material, facts[0], rng):
            seen.add(turn.intent)
            assert turn.question
            assert turn.answer
            assert "{w" not in turn.question
            assert "{a" not in turn.question
            if turn.intent == "unknown":
                assert says_unknown(turn.answer)
            if turn.intent in ("refused", "small_talk"):
                assert is_refusal(turn.answer)
            if turn.word in by_word:
                assert judge(turn.answer, turn.intent, turn.word, by_word) in ("right", "refused")
    assert seen >= {"definition", "everything", "unknown", "refused", "small_talk", "task"}


def test_places_of_a_phrasing_take_the_words_in_turn() -> None:
    assert fill("{w} or {aw}?", ["sea", "ocean"]) == "sea or an ocean?"
    assert fill("Is {aw} {ay}?", ["whale"], "animal") == "Is a whale an animal?"
    assert fill("{ws}, {w}", ["fox"]) == "foxes, fox"
    assert with_article("European") == "a European"
    assert with_article("hour glass") == "a hour glass"  # by its letter, as said


def test_a_misspelt_word_is_named_before_it_is_explained() -> None:
    fact = Fact("ocean", "noun", "a large body of water")
    assert Mention("ocaen", fact, is_misspelt=True).answer("definition") == (
        "Did you mean ocean? ocean (noun): a large body of water"
    )


@pytest.mark.parametrize(
    ("word", "pos", "forms"),
    [
        ("city", "n", ("cities",)),
        ("box", "n", ("boxes",)),
        ("ox", "n", ("oxen",)),
        ("stop", "v", ("stops", "stopping", "stopped")),
        ("make", "v", ("makes", "making", "maked")),
        ("see", "v", ("sees", "seeing", "seed")),
        ("happy", "a", ("happier", "happiest")),
        ("wonderful", "a", ()),
        ("quickly", "r", ()),
    ],
)
def test_inflected_forms(folder: Path, word: str, pos: str, forms: tuple[str, ...]) -> None:
    assert inflected_forms(word, pos, read_irregular(folder)) == forms


def test_misspellings_are_no_words_and_seldom_written() -> None:
    frequencies = {"receive": 1e-4, "recieve": 1e-6, "receipt": 1e-5, "recceive": 1e-5}
    found = misspellings("receive", frequencies, {"receive", "recive"})
    assert found[0] == "recieve"  # the one that is seen in texts comes first
    assert not {"receive", "recive", "recceive"} & set(found)
    assert misspellings("sea", frequencies, ()) == ()


def test_words_that_were_once_invented_get_an_answer_of_their_own() -> None:
    material = Material([], [], not_sure_words={"gulper": None})
    assert unknown_answer(material, "gulper") == "I am not sure what gulper means."
    assert says_unknown(unknown_answer(material, "gulper"))
    assert says_unknown(unknown_answer(material, "main"))


def test_the_judge_tells_inventions_from_refusals_and_truth() -> None:
    facts = {"ocean": Fact("ocean", "noun", "a large body of water", kind="body of water")}
    cases = {
        "ocean (noun): a large body of water": "right",
        "Did you mean ocean? ocean (noun): a large body of water": "right",
        "I don't know the word ocean.": "refused",
        "ocean is a kind of body of water.": "not asked",
        "ocean (noun): a large body": "invented",
        "river (noun): a stream": "invented",
    }
    found = {answer: judge(answer, "definition", "ocean", facts) for answer in cases}
    assert found == cases
    assert judge("I don't know that word.", "unknown", "gulper", facts) == "right"
    assert judge("gulper (noun): a fish", "unknown", "gulper", facts) == "invented"
    assert judge("ocean is a kind of body of water.", "refuse", "", facts) == "not asked"
    assert judge("I know no opposite of ocean.", "opposite", "ocean", facts) == "refused"


def test_a_question_in_a_hurry_keeps_its_words() -> None:
    rng = random.Random(2)
    seen = {vary("What does ocean mean?", rng) for _ in range(300)}
    assert all("hat does ocean mean" in text for text in seen)
    assert {"What does ocean mean?", "What does ocean mean"} <= seen
    assert len(seen) > 20
