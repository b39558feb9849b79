"""What a half-trained model gets wrong leaves the data of the last stage."""

from __future__ import annotations

from collections.abc import Sequence

from tools.demo.calibrate import calibrated, count_others, explained
from tools.demo.lexicon import Fact

OCEAN = Fact(
    "ocean",
    "noun",
    "a large body of water",
    synonyms=("sea",),
    kind="body of water",
    example="the ocean is deep",
    forms=("oceans",),
    misspellings=("ocaen",),
)
RIVER = Fact("river", "noun", "a large stream", forms=("rivers",))
RIGHT = OCEAN.answers()


def ask_with(answers: dict[str, str]):  # type: ignore[no-untyped-def]
    """A model that knows these questions and says "Nonsense." to all others."""

    def ask(questions: Sequence[str]) -> list[str]:
        return [answers.get(question, "Nonsense.") for question in questions]

    return ask


def test_what_is_right_in_one_of_two_ways_stays() -> None:
    ask = ask_with(
        {
            "Define ocean.": RIGHT["definition"].upper(),
            "What is a synonym of ocean?": RIGHT["synonyms"],
            "What is ocean a kind of?": RIGHT["kind"],
            "What does oceans mean?": RIGHT["definition"],
            "Define ocaen.": f"Did you mean ocean? {RIGHT['definition']}",
        }
    )
    facts, unsure = calibrated(ask, [OCEAN, RIVER])
    (ocean,) = facts
    assert (ocean.synonyms, ocean.kind, ocean.example) == (("sea",), "body of water", "")
    assert (ocean.forms, ocean.misspellings) == (("oceans",), ("ocaen",))
    assert unsure == ["river"]
    assert count_others([OCEAN]) - count_others(facts) == 1


def test_forms_that_lead_elsewhere_are_not_taken_for_the_word() -> None:
    ask = ask_with(
        {"What does ocean mean?": RIGHT["definition"], "Define oceans.": "I am not sure"}
    )
    (ocean,), unsure = calibrated(ask, [OCEAN])
    assert (ocean.forms, ocean.misspellings) == ((), ())
    assert unsure == ["ocaen", "oceans"]
    assert not ocean.is_known("kind")


def test_words_outside_that_are_explained_are_found() -> None:
    unknown = "I don't know the word {}."
    answers = {
        question.format(w=word): unknown.format(word)
        for question in ("What does {w} mean?", "what is {w}", "{w}")
        for word in ("gulper", "zorbly")
    }
    answers["what is gulper"] = "gulper (noun): a fish"
    assert explained(ask_with(answers), ["zorbly", "gulper"]) == ["gulper"]
