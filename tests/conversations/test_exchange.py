"""Export and import: exact in one direction and back, distrustful of everything else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashllm.conversations import exchange
from flashllm.conversations import exchange as checks
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Conversation, Turn
from flashllm.errors import NotASession

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.none() | st.booleans() | NUMBERS
VALUES = st.dictionaries(TEXTS, VALUE)
SUMS = ("prompt_tokens", "tokens")
"""Of these names a turn holds whole numbers only, since a session adds them."""
OF_A_TURN = st.builds(
    lambda others, sums: others | sums,
    st.dictionaries(TEXTS.filter(lambda name: name not in SUMS), VALUE),
    st.dictionaries(st.sampled_from(SUMS), st.integers(0, 2**31 - 1)),
)


@st.composite
def conversations(draw: Any) -> dict[str, Any]:
    count = draw(st.integers(0, 6))
    roles: dict[int | None, str] = {None: ""}
    turns = []
    for number in range(1, 2 * count, 2):
        parent = draw(st.sampled_from([*roles]))
        answers = roles[parent] == "user" and draw(st.booleans())
        roles[number] = "assistant" if answers else "user"
        turns.append(
            {
                "id": number,
                "parent": parent,
                "role": roles[number],
                "text": draw(TEXTS),
                "ids": draw(st.lists(st.integers(0, 2**31 - 1), max_size=5)),
                "finish_reason": draw(st.none() | st.sampled_from(["stop", "length"])),
                "created": draw(st.floats(0, 1e10)),
                "numbers": draw(OF_A_TURN),
            }
        )
    return {
        "format": "flashllm-session",
        "version": 1,
        "name": draw(TEXTS),
        "model": draw(TEXTS),
        "system": draw(TEXTS),
        "settings": draw(VALUES),
        "created": draw(st.floats(0, 1e10)),
        "updated": draw(st.floats(0, 1e10)),
        "leaf": 2 * draw(st.integers(0, count - 1)) + 1 if count else None,
        "turns": turns,
    }


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=conversations())
def test_what_is_imported_is_exported_as_it_was(tmp_path: Path, value: dict[str, Any]) -> None:
    content = json.dumps(value).encode()
    with SessionStore(tmp_path / "chats.db") as store:
        number = store.import_json(exchange.parse(content))
        assert store.export_json(number) == value


GOOD: dict[str, Any] = {
    "format": "flashllm-session",
    "version": 1,
    "name": "n",
    "model": "m",
    "system": "",
    "settings": {},
    "created": 1.0,
    "updated": 2.0,
    "leaf": 2,
    "turns": [
        {
            "id": number,
            "parent": number - 1 or None,
            "role": "user" if number % 2 else "assistant",
            "text": "x",
            "ids": [1],
            "finish_reason": None,
            "created": 1.0,
            "numbers": {},
        }
        for number in (1, 2)
    ],
}
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (("format",), "chatgpt", "no conversation that flashllm exported"),
        (("version",), 2, "version 2, and only 1"),
        (("version",), "\x1b[2J" * 100, "only 1"),
        (("name",), 5, "its name is no text"),
        (("name",), "x" * 1001, "longer than 1000"),
        (("system",), "\ud800", "lone surrogate"),
        (("settings",), [], "its settings is no object"),
        (("settings",), {"x": float("nan")}, "no form for"),
        (("settings",), {"x": DEEP}, "no form for"),
        (("settings",), {"x": "y" * 70_000}, "longer than 65536"),
        (("created",), True, "created is no number"),
        (("created",), -1.0, "no time"),
        (("created",), 1e300, "no time"),
        (("updated",), float("nan"), "no time"),
        (("updated",), 10**400, "no time"),
        (("leaf",), 3, "leaf, turn 3, does not exist"),
        (("leaf",), None, "no leaf"),
        (("leaf",), True, "no whole number"),
        (("turns",), {}, "no list"),
        (("turns",), [None] * (checks.TURNS_MAX + 1), "no list of 20000 at most"),
        (("turns", 0), None, "a turn is no object"),
        (("turns", 0, "id"), 0, "from 1"),
        (("turns", 0, "id"), True, "no whole number"),
        (("turns", 0, "id"), 2, "occurs twice"),
        (("turns", 0, "parent"), 1, "not before it"),
        (("turns", 0, "parent"), 2, "not before it"),
        (("turns", 1, "parent"), 9, "answers turn 9"),
        (("turns", 1, "role"), "system", "neither user nor assistant"),
        (("turns", 0, "role"), "assistant", "turn 1 is an answer, and not to a question"),
        (("turns", 1, "parent"), None, "turn 2 is an answer, and not to a question"),
        (("turns", 1, "numbers"), {"tokens": "many"}, "tokens of its numbers is no whole"),
        (("turns", 1, "numbers"), {"prompt_tokens": -1}, "prompt_tokens of its numbers is no"),
        (("turns", 1, "role"), ["user"], "neither user nor assistant"),
        (("turns", 1, "text"), None, "its text is no text"),
        (("turns", 1, "ids"), "12", "no list"),
        (("turns", 1, "ids"), [-1], "id of a token"),
        (("turns", 1, "ids"), [1.0], "id of a token"),
        (("turns", 1, "ids"), [2**31], "id of a token"),
        (("turns", 1, "finish_reason"), "x" * 65, "longer than 64"),
        (("turns", 1, "numbers"), None, "no object"),
        (("surprise",), 1, "'surprise', which nobody here knows"),
        (("turns", 1, "surprise"), 1, "'surprise', which nobody here knows"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_nothing_is_added(
    tmp_path: Path, place: tuple[Any, ...], value: object, expected: str
) -> None:
    wrong = copy.deepcopy(GOOD)
    at: Any = wrong
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    with SessionStore(tmp_path / "chats.db") as store:
        with pytest.raises(NotASession, match=expected):
            store.import_json(wrong)
        assert store.list() == []
        assert store.export_json(store.import_json(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("reason", "is_complete"),
    [("stop", True), ("length", False), ("context", False), ("error", False), (None, False)],
)
def test_markdown_says_what_is_incomplete(
    tmp_path: Path, reason: str | None, is_complete: bool
) -> None:
    value = copy.deepcopy(GOOD)
    value["turns"][1]["finish_reason"] = reason
    with SessionStore(tmp_path / "chats.db") as store:
        text = store.export_markdown(store.import_json(value))
    assert text.endswith("\nx\n" if is_complete else "\nx\n\n*(incomplete)*\n")


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_every_field_is_needed(missing: str) -> None:
    with pytest.raises(NotASession):
        exchange.from_json({key: value for key, value in GOOD.items() if key != missing})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "no JSON"),
        (b"\xff{}", "not UTF-8"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b"[" * 100_000, "cannot be read"),
        (b"1" * 10_000, "cannot be read"),
        (b"{} {}", "line 1, column 4"),
    ],
    ids=["empty", "utf-8", "twice", "nan", "deep", "digits", "two"],
)
def test_files_that_are_no_strict_json(content: bytes, expected: str) -> None:
    with pytest.raises(NotASession, match=expected):
        exchange.parse(content)


def test_a_file_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FILE_BYTES_MAX", 3)
    with pytest.raises(NotASession, match="larger than"):
        exchange.parse(b'"xx"')


def test_markdown_is_the_branch_that_is_shown_and_acts_on_no_terminal(tmp_path: Path) -> None:
    conversation = Conversation("Be\nbrief.")
    first = conversation.ask("What is an \x1b]0;owned\x07ocean?")
    answer = conversation.begin_answer()
    answer.text, answer.finish_reason = "# Water\n```c\nint x;\n```\n", "stop"
    conversation.edit(first.id, "hidden")
    conversation.choose(first.id)
    conversation.ask("And?")
    conversation.begin_answer().text = "A lot \x9b2J"
    with SessionStore(tmp_path / "chats.db") as store:
        number = store.create(name="Seas\x1b[2J\n", system=conversation.system)
        for turn in conversation.turns.values():
            store.save_turn(number, turn)
        text = store.export_markdown(number)
    lines = text.split("\n")
    assert lines[0] == "# Seas"
    assert lines[2].startswith("*2")
    assert "\n".join(lines[4:]) == (
        "> Be\n> brief.\n\n## You\n\nWhat is an ocean?\n\n## Answer\n\n"
        "# Water\n```c\nint x;\n```\n\n## You\n\nAnd?\n\n## Answer\n\nA lot \n\n*(incomplete)*\n"
    )


def test_a_conversation_without_turns(tmp_path: Path) -> None:
    with SessionStore(tmp_path / "chats.db") as store:
        number = store.create()
        assert store.export_markdown(number).startswith(f"# Conversation {number}\n")
        again = store.import_json(store.export_json(number))
        assert store.load(again).conversation == Conversation()
        store.save_turn(again, Turn(1, None, "user", "x"))


def test_an_answer_that_is_older_than_its_question() -> None:
    question, answer = GOOD["turns"]
    turns = [question | {"id": 2}, answer | {"id": 1, "parent": 2}]
    with pytest.raises(NotASession, match="turn 1 is older than turn 2, which it answers"):
        exchange.from_json(GOOD | {"turns": turns})
