"""A tree of turns, and what of it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm.conversations.fit import fit
from flashllm.conversations.tree import Conversation, restored
from flashllm.errors import UsageError
from flashllm.tokenizer.chat_template import Message


def encode(messages: Sequence[Message], known: Mapping[int, Sequence[int]]) -> list[int]:
    """An id for each character, or the ids known of an answer."""
    ids: list[int] = []
    for number, message in enumerate(messages):
        assert number not in known or message["role"] == "assistant"
        ids += known.get(number, [0] * len(message["content"]))
    return ids


def talk(*texts: str) -> Conversation:
    conversation = Conversation()
    for index, text in enumerate(texts):
        if index % 2:
            conversation.begin_answer().text = text
        else:
            conversation.ask(text)
    return conversation


def lengths(*lengths: int) -> list[Message]:
    return talk(*("x" * length for length in lengths)).messages()


def sent(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages()]


def test_what_fits_is_sent_whole() -> None:
    assert fit(lengths(10, 10, 10), "", encode, 40, 100).dropped == 0


def test_the_oldest_turns_go_first_and_the_system_prompt_stays() -> None:
    fitted = fit(lengths(10, 10, 3, 3, 5), "s" * 7, encode, 40, 100)
    assert fitted.dropped == 2
    assert len(fitted.ids) == 7 + 3 + 3 + 5


def test_so_many_go_at_once_that_the_turns_to_come_begin_alike() -> None:
    """Each turn of a long chat takes 4 + 6 tokens, of a context of 100 with room for 10."""
    conversation = Conversation()
    cut = []
    for number in range(30):
        conversation.ask("q" * 4)
        fitted = fit(conversation.messages(), "", encode, 100, 10)
        if fitted.dropped:
            conversation.dropped += fitted.dropped
            cut.append(number)
            assert len(fitted.ids) == 44  # with one pair more it would be more than half
        conversation.begin_answer().text = "a" * 6
    assert cut == [9, 14, 19, 24, 29]


def test_of_a_long_conversation_few_beginnings_are_tried() -> None:
    tried = 0

    def counted(messages: Sequence[Message], known: Mapping[int, Sequence[int]]) -> list[int]:
        nonlocal tried
        tried += 1
        return encode(messages, known)

    fitted = fit(lengths(*[3] * 4001), "", counted, 100, 10)
    assert (fitted.dropped, len(fitted.ids)) == (3986, 45)
    assert tried < 20


def test_room_for_the_answer_is_small_when_the_answer_is() -> None:
    assert fit(lengths(39), "", encode, 40, 1).dropped == 0


def test_one_message_may_take_the_answers_room_but_not_more() -> None:
    assert len(fit(lengths(39), "", encode, 40, 100).ids) == 39
    with pytest.raises(UsageError, match="this message has 40 tokens, and the context holds 40"):
        fit(lengths(40), "", encode, 40, 100)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9).filter(lambda n: len(n) % 2 == 1))
def test_what_is_sent_fits_and_ends_with_the_question(sizes: list[int]) -> None:
    messages = lengths(*sizes)
    try:
        fitted = fit(messages, "", encode, 40, 20)
    except UsageError:
        assert sizes[-1] >= 40
        return
    assert fitted.dropped % 2 == 0
    assert fitted.ids == encode(messages[fitted.dropped :], {})
    assert len(fitted.ids) < 40


@pytest.mark.parametrize("system", ["", "s"])
def test_known_ids_stay_with_their_answers_when_messages_are_left_out(system: str) -> None:
    conversation = talk("a" * 20, "b" * 20, "c" * 3, "d" * 3, "e")
    for turn, ids in zip(conversation.path()[1::2], [(7,) * 20, (8, 9)], strict=True):
        turn.ids = ids
    assert conversation.known() == {1: (7,) * 20, 3: (8, 9)}
    fitted = fit(conversation.messages(), system, encode, 40, 20, conversation.known())
    assert fitted.dropped == 2
    assert fitted.ids == [0] * (len(system) + 3) + [8, 9, 0]


def test_an_edited_question_is_a_branch_and_the_other_one_stays() -> None:
    conversation = talk("a", "b", "c", "d")
    first, answer, third, _ = conversation.path()
    edited = conversation.edit(third.id, "C")
    assert sent(conversation) == ["a", "b", "C"]
    assert conversation.siblings(third.id) == conversation.siblings(edited.id) == [third.id, 5]
    conversation.begin_answer().text = "D"
    conversation.choose(third.id)
    assert sent(conversation) == ["a", "b", "c", "d"]
    conversation.choose(edited.id)
    assert sent(conversation) == ["a", "b", "C", "D"]
    conversation.edit(first.id, "A")
    assert sent(conversation) == ["A"]
    assert conversation.siblings(first.id) == [first.id, 7]
    conversation.choose(answer.id)
    assert sent(conversation) == ["a", "b", "C", "D"]  # the newest branch below


def test_answering_once_more_makes_a_sibling_without_text() -> None:
    conversation = talk("a", "b")
    answer = conversation.path()[-1]
    again = conversation.regenerate()
    assert (again.role, again.text, again.parent) == ("assistant", "", answer.parent)
    assert sent(conversation) == ["a"]
    assert conversation.siblings(answer.id) == [answer.id, again.id]
    conversation.remove(again.id)
    assert sent(conversation) == ["a", "b"]
    conversation.remove(answer.id)
    assert sent(conversation) == ["a"]
    assert conversation.regenerate().parent == answer.parent  # the question is the leaf now


def test_where_a_version_is_removed_the_nearest_other_one_is_shown() -> None:
    conversation = talk("a", "b")
    first, second, third = 1, conversation.edit(1, "A").id, conversation.edit(1, "aa").id
    conversation.choose(second)
    conversation.remove(second)
    assert sent(conversation) == ["a", "b"]  # the one before, to its end
    conversation.remove(first)
    assert sent(conversation) == ["aa"]
    conversation.edit(third, "AA")
    conversation.remove(third)  # not shown
    assert sent(conversation) == ["AA"]


def test_what_is_removed_goes_with_all_below_and_the_path_ends_above() -> None:
    conversation = talk("a", "b", "c", "d")
    first, answer, third, last = conversation.path()
    conversation.edit(third.id, "C")
    conversation.remove(third.id)  # not shown
    assert last.id not in conversation.turns
    assert sent(conversation) == ["a", "b", "C"]
    conversation.remove(answer.id)
    assert list(conversation.turns) == [first.id]
    assert conversation.leaf == first.id
    conversation.remove(first.id)
    assert (conversation.leaf, conversation.turns, conversation.messages()) == (None, {}, [])


def test_a_question_left_without_an_answer_is_not_sent_again() -> None:
    conversation = talk("a", "b", "c", "\n", "d")
    assert sent(conversation) == ["a", "b", "d"]
    assert sent(talk("a", "")) == ["a"]


def test_what_no_longer_fits_stays_unsent_from_that_question_on() -> None:
    conversation = talk("a", "b", "c", "d", "e")
    conversation.turns[4].ids = (1,)
    conversation.dropped = 2
    assert sent(conversation) == ["c", "d", "e"]
    assert conversation.known() == {1: (1,)}
    conversation.begin_answer().text = "f"
    conversation.regenerate()
    assert sent(conversation) == ["c", "d", "e"]
    conversation.ask("g")
    conversation.dropped += 2
    assert sent(conversation) == ["g"]
    # A version of an earlier question is sent what it would have been sent then.
    conversation.edit(3, "C")
    assert sent(conversation) == ["a", "b", "C"]
    conversation.choose(5)
    assert conversation.dropped == 4
    conversation.remove(conversation.path()[-1].id)
    assert sent(conversation) == ["c", "d", "e"]
    conversation.clear()
    conversation.ask("h")
    assert sent(conversation) == ["h"]


def test_no_id_comes_twice() -> None:
    """What is known of a turn that was removed is not known of another one."""
    conversation = talk("a", "b")
    conversation.remove(2)
    assert conversation.regenerate().id == 3
    conversation.clear()
    assert conversation.ask("c").id == 4


def test_a_conversation_comes_back_from_its_turns() -> None:
    conversation = talk("a", "b", "c")
    conversation.edit(3, "C")
    again = restored("s", conversation.turns.values(), 3)
    assert sent(again) == ["a", "b", "c"]
    assert again.system == "s"
    assert again.ask("d").id == 5


def test_of_questions_without_an_answer_the_last_one_is_sent() -> None:
    conversation = talk("a", "b")
    conversation.ask("left behind")
    conversation.ask("left behind too")
    conversation.ask("c")
    assert sent(conversation) == ["a", "b", "c"]
    conversation.begin_answer()
    assert sent(conversation) == ["a", "b", "c"]
