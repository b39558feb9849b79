"""Conversations that are kept come back as they were, and are found again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flashllm.conversations.rows import head_row
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Conversation, Turn
from flashllm.errors import SessionNotFound, UsageError

SURROGATE = "half \ud800"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "data" / "chats.db") as opened:
        yield opened


def keep(store: SessionStore, conversation: Conversation, **head: str) -> int:
    """The whole conversation as a new session."""
    number = store.create(system=conversation.system, **head)
    for turn in conversation.turns.values():
        store.save_turn(number, turn)
    store.save_leaf(number, conversation.leaf)
    return number


def branched() -> Conversation:
    """Two questions, the first edited, its answer given twice; the older branch is shown."""
    conversation = Conversation("Be brief.")
    first = conversation.ask("What is an ocean?")
    answer = conversation.begin_answer()
    answer.text, answer.ids, answer.finish_reason = "Water.\x1b[2J\x00 é", (5, 0, 2**31 - 1), "stop"
    answer.numbers = {"decode": {"tokens": 3, "wall_ns": 12}, "share": 0.25}
    conversation.ask("And a river?")
    conversation.edit(first.id, "What is a sea?")
    conversation.begin_answer()
    again = conversation.regenerate()
    again.text = "Salt water"
    conversation.choose(first.id)
    return conversation


def test_a_conversation_comes_back_with_all_its_branches(store: SessionStore) -> None:
    kept = branched()
    number = keep(store, kept, name="Seas", model="/models/a")
    with SessionStore(store.path) as other:
        session = other.load(number)
    assert session.conversation == kept
    assert (session.meta.name, session.meta.model, session.meta.turns) == ("Seas", "/models/a", 6)
    assert session.meta.preview == "What is an ocean?"


def test_turns_of_a_conversation_share_the_ids_of_their_tokens(store: SessionStore) -> None:
    kept = branched()
    for turn in kept.turns.values():
        turn.ids = (70_001, 70_002) if turn.role == "assistant" else ()
    loaded = store.load(keep(store, kept)).conversation
    ids = [one for turn in loaded.turns.values() for one in turn.ids]
    assert len(ids) > 2
    assert len({id(one) for one in ids}) == 2


def test_a_new_turn_is_shown_and_an_older_one_changes_nothing(store: SessionStore) -> None:
    number = store.create()
    question = Turn(1, None, "user", "a")
    store.save_turn(number, question)
    store.save_turn(number, Turn(2, 1, "assistant", ""))
    store.save_turn(number, question)
    assert store.load(number).conversation.leaf == 2


def test_a_leaf_that_is_gone_is_the_newest_turn(store: SessionStore) -> None:
    number = store.create()
    store.save_turn(number, Turn(1, None, "user", "a"))
    store.save_leaf(number, 7)
    assert store.load(number).conversation.leaf == 1
    empty = store.create()
    store.save_leaf(empty, 7)
    assert store.load(empty).conversation.path() == []


def test_removing_takes_all_below_however_deep(store: SessionStore) -> None:
    number = store.create()
    for index in range(1, 1502):  # SQLite's own cascade ends at 1000 levels
        store.save_turn(number, Turn(index, index - 1 or None, "user", "x"))
    store.remove_turn(number, 2)
    conversation = store.load(number).conversation
    assert (list(conversation.turns), conversation.leaf) == ([1], 1)
    store.remove_turn(number, 1)
    assert store.load(number).conversation.leaf is None
    store.remove_turn(number, 1)  # gone already


def test_what_is_no_text_is_replaced(store: SessionStore) -> None:
    number = store.create(name=SURROGATE)
    store.save_turn(number, Turn(1, None, "user", SURROGATE, numbers={"share": float("nan")}))
    session = store.load(number)
    assert session.meta.name == "half ?"
    assert session.conversation.turns[1].text == "half ?"
    assert session.conversation.turns[1].numbers == {"share": None}


def test_numbers_too_long_to_be_read_again_are_not_worth_the_turn(store: SessionStore) -> None:
    number = store.create(name="n" * 5000, settings={"x": "y" * 100_000})
    store.save_turn(number, Turn(1, None, "user", "a", numbers={"x": "y" * 100_000}))
    session = store.load(number)
    assert (session.settings, session.conversation.turns[1].numbers) == ({}, {})
    assert session.meta.name == "n" * 1000


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"A 100% name", "under_score", ""}),
        ("  ", {"A 100% name", "under_score", ""}),
        ("100%", {"A 100% name"}),
        ("%", {"A 100% name"}),
        ("_", {"under_score"}),
        ("'; DROP TABLE turn; --", set()),
        (SURROGATE, set()),
        ("MÄRCHEN", {""}),  # in a text, case aside beyond ASCII
        ("behind a zero", {"under_score"}),
        ("be brief", {"under_score"}),  # a system prompt
        ("straße", {"A 100% name"}),
        ("STRASSE", {"A 100% name"}),
    ],
)
def test_search_means_what_it_says(store: SessionStore, query: str, expected: set[str]) -> None:
    for name, system, text in [
        ("A 100% name", "", "Straße"),
        ("under_score", "Be brief.", "\x00behind a zero"),
        ("", "", "Ein Märchen"),
    ]:
        number = store.create(name=name, system=system)
        store.save_turn(number, Turn(1, None, "user", text))
    assert {summary.name for summary in store.list(query)} == expected


def test_the_last_changed_comes_first(store: SessionStore) -> None:
    assert store.latest() is None
    first, second, third = (store.create(name=name) for name in "abc")
    store.save_turn(first, Turn(1, None, "user", "x"))
    assert [one.id for one in store.list()] == [first, third, second]
    assert store.latest() == first
    assert [one.id for one in store.list(limit=1)] == [first]


def test_the_latest_is_one_that_has_messages(store: SessionStore) -> None:
    first, second = store.create(name="a"), store.create(name="b")
    assert store.latest() is None
    store.save_turn(first, Turn(1, None, "user", "x"))
    store.rename(second, "c")
    assert [one.id for one in store.list()] == [second, first]
    assert store.latest() == first
    store.delete_empty(first)
    store.delete_empty(second)
    assert [one.id for one in store.list()] == [first]


def test_found_by_id_and_by_a_name_that_is_unique(store: SessionStore) -> None:
    first, second = store.create(name="Seas"), store.create(name="2 rivers")
    third = store.create(name="1")
    assert store.find(str(second)) == second
    assert store.find("SEAS") == first
    assert store.find("1") == first  # an id before a name
    store.rename(third, "seas")
    with pytest.raises(UsageError, match="conversations 1, 3; give an id"):
        store.find("seas")
    for nobody in ("sea", "99", "", "²", "9" * 5000):
        with pytest.raises(SessionNotFound, match="`flashllm sessions list` shows them"):
            store.find(nobody)


def test_what_is_deleted_is_gone_and_its_id_not_given_again(store: SessionStore) -> None:
    number = keep(store, branched())
    store.delete(number)
    for call in (
        lambda: store.load(number),
        lambda: store.delete(number),
        lambda: store.save_turn(number, Turn(1, None, "user", "x")),
        lambda: store.rename(number, "x"),
        lambda: store.export_json(number),
    ):
        with pytest.raises(SessionNotFound):
            call()
    assert store.create() > number
    assert store.list("ocean") == []


def test_of_a_known_age_only_that_one_is_renamed_and_deleted(store: SessionStore) -> None:
    number = store.create(name="theirs")
    created = store.summary(number).created
    for call in (store.delete, lambda one, began: store.rename(one, "x", began)):
        with pytest.raises(SessionNotFound):
            call(number, created - 1)
    assert store.summary(number).name == "theirs"
    store.rename(number, "ours", created)
    assert store.summary(number).name == "ours"
    store.delete(number, created)
    assert store.list() == []


def test_a_turn_whose_question_is_gone_is_not_kept_without_it(store: SessionStore) -> None:
    number = store.create()
    with pytest.raises(SessionNotFound, match="deleted elsewhere"):
        store.save_turn(number, Turn(2, 1, "assistant", "x"))
    assert store.load(number).conversation.turns == {}


def test_a_head_has_columns_for_what_is_given() -> None:
    assert head_row(name=None, model="demo", system=None, settings=None) == {"model": "demo"}
    assert head_row(name="n" * 5000, model=None, system="", settings={}).keys() == {
        "name", "system", "settings"
    }  # fmt: skip
