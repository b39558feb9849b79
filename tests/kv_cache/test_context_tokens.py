"""What of a context may stay, held against contexts that never went further.

What a token comes to depends, as it does in a model with predictors, on all tokens before it and on
whether it is one of a prompt or of an answer; the token drawn behind it on that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.kv_cache.context_tokens import ContextTokens

CHUNK = 4
END = 9
"""Stands between an answer and the next question, as templates have it."""


class Cancelled(Exception):
    """As the engine's."""


@dataclass
class Model:
    """A context of hashes instead of keys and values."""

    running: ContextTokens = field(default_factory=lambda: ContextTokens())
    states: list[str] = field(default_factory=list)
    computed: int = 0

    def generate(
        self, prompt: list[int], count: int, said: tuple[int, ...] = (), stop_after: int = 1 << 30
    ) -> list[int]:
        """`count` tokens; after `stop_after` chunks of the prompt it is cancelled."""
        kept = self.running.cached_prefix([*prompt, *said], len(said))
        assert kept < len(prompt) + len(said)
        self.running.truncate(kept)
        del self.states[kept:]
        for number, start in enumerate(range(kept, len(prompt), CHUNK)):
            if number == stop_after:
                raise Cancelled
            self._compute(prompt[start : start + CHUNK], "chunk")
            self.running.append_prefilled(prompt[start : start + CHUNK])
        for token in said[max(kept - len(prompt), 0) :]:
            self._decode(token)
        found: list[int] = []
        while True:
            found.append(int(self.states[-1], 16) % 3)
            if len(found) >= count:
                return found
            self._decode(found[-1])

    def _decode(self, token: int) -> None:
        self._compute([token], "token")
        self.running.append_decoded(token)

    def _compute(self, ids: list[int], kind: str) -> None:
        before = self.states[-1] if self.states else ""
        self.computed += len(ids)
        for token in ids:
            before = hashlib.sha256(repr((before, kind, token)).encode()).hexdigest()
            self.states.append(before)


@dataclass
class Chat:
    """Questions and answers so far, over one model."""

    model: Model = field(default_factory=Model)
    turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def ids(self, question: tuple[int, ...], turns: int) -> list[int]:
        before = [token for q, a in self.turns[:turns] for token in (7, *q, 8, *a, END)]
        return [*before, 7, *question, 8]

    def ask(self, question: tuple[int, ...], count: int, turns: int, stop: int = 1 << 30) -> None:
        """Behind so many turns: the others, if there are any, are left."""
        prompt = self.ids(question, turns)
        del self.turns[turns:]
        answer = self.model.generate(prompt, count, stop_after=stop)
        self.turns.append((question, tuple(answer)))

    def go_on(self, count: int) -> None:
        question, said = self.turns[-1]
        more = self.model.generate(self.ids(question, len(self.turns) - 1), count, said)
        self.turns[-1] = (question, (*said, *more))


def fresh(chat: Chat) -> list[str]:
    """The states of a chat that was never stopped, edited or asked twice."""
    other = Chat()
    for number, (question, answer) in enumerate(chat.turns):
        other.ask(question, len(answer), number)
        assert other.turns == chat.turns[: number + 1]
    return other.model.states


QUESTIONS = st.lists(st.integers(0, 2), max_size=11).map(tuple)
STEPS = st.one_of(
    st.tuples(st.just("ask"), QUESTIONS, st.integers(1, 6), st.integers(0, 9)),
    st.tuples(st.just("stopped"), QUESTIONS, st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("again"), st.just(()), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("on"), st.just(()), st.integers(1, 6), st.just(0)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_a_chat_with_edits_is_a_chat_without(
    steps: list[tuple[str, tuple[int, ...], int, int]],
) -> None:
    chat = Chat()
    for what, question, count, back in steps:
        turns = len(chat.turns)
        if what == "ask":
            chat.ask(question, count, max(turns - back, 0) if back < 4 else turns)
        elif what == "stopped":
            try:
                chat.ask(question, 1, max(turns - back, 0) if back < 4 else turns, stop=count)
            except Cancelled:
                continue
        elif not turns:
            continue
        elif what == "again":
            chat.ask(chat.turns[-1][0], count, turns - 1)
        else:
            chat.go_on(count)
        assert chat.model.running.ids == chat.ids((), len(chat.turns))[: len(chat.model.states)]
        assert chat.model.states == fresh(chat)


def test_what_is_computed_is_what_is_new() -> None:
    chat = Chat()
    chat.ask((1, 2, 1), 5, 0)
    before = chat.model.computed
    chat.ask((0, 1), 1, 1)
    # The last token of the answer, what ends it, and the question between its marks.
    assert chat.model.computed - before == 1 + 1 + 4
    again = chat.model.computed
    chat.ask((0, 1), 1, 1)
    assert chat.model.computed - again == 1


def test_what_both_begin_with_stays_but_one_token() -> None:
    running = ContextTokens()
    running.append_prefilled([1, 2, 3, 4])
    running.append_prefilled([5, 6, 7])
    assert running.cached_prefix([1, 2, 9]) == 2
    assert running.cached_prefix([2, 1]) == 0
    assert running.cached_prefix([1, 2, 3, 4, 5, 6, 7]) == 6  # one token at least is computed
    running.truncate(6)
    assert running.ids == [1, 2, 3, 4, 5, 6]
    running.append_prefilled([10, 11])
    assert running.cached_prefix([1, 2, 3, 4, 5, 6, 10, 12]) == 7
    assert running.cached_prefix([1, 2, 3, 4, 5, 6, 10, 11], 3) == 5  # an answer is decoded anew


def test_answers_of_others_are_no_part_of_a_prompt() -> None:
    """A prompt may repeat an answer; what was decoded is computed anew with the prompt."""
    running = ContextTokens()
    running.append_prefilled([1, 2])
    for token in (3, 4):
        running.append_decoded(token)
    running.append_prefilled([5, 6])
    ids = [1, 2, 3, 4, 5, 6, 7]
    assert running.cached_prefix(ids) == 6
    assert running.cached_prefix(ids, reuse_answers=False) == 2
    assert running.cached_prefix(ids[:5], answer=3, reuse_answers=False) == 4
    assert running.cached_prefix(ids, answer=4, reuse_answers=False) == 2
    alike = ContextTokens(decoded_alike=True)
    alike.append_decoded(1)
    assert alike.cached_prefix([1, 2], reuse_answers=False) == 1


def test_where_all_tokens_are_alike_an_answer_stays_as_it_was_read() -> None:
    running = ContextTokens(decoded_alike=True)
    running.append_prefilled([1, 2, 3, 4, 5, 6])
    assert running.cached_prefix([1, 2, 3, 4, 5, 6], answer=3) == 5


def test_an_answer_that_was_read_as_a_prompt_is_decoded_anew() -> None:
    running = ContextTokens()
    running.append_prefilled([1, 2, 3, 4])
    running.append_prefilled([5, 6, 7])
    assert running.cached_prefix([1, 2, 3, 4, 5, 6], 2) == 4
    assert running.cached_prefix([1, 2, 3, 4, 5, 6], 1) == 5
    running.truncate(4)
    running.append_decoded(5)
    running.append_decoded(6)
    assert running.cached_prefix([1, 2, 3, 4, 5, 6], 2) == 5
    assert running.cached_prefix([1, 2, 3, 4, 5, 6, 7], 3) == 6


def test_an_answer_may_begin_within_a_chunk() -> None:
    running = ContextTokens()
    running.append_prefilled([1, 2, 3, 4, 5])
    running.append_decoded(6)
    # What was read as a part of a prompt is decoded to go on.
    assert running.cached_prefix([1, 2, 3, 4, 5, 9], answer=3) == 3
    assert running.cached_prefix([1, 2, 3, 4, 5, 6, 9], answer=2) == 6
    assert running.cached_prefix([1, 2, 3, 4, 5, 6, 9], answer=4) == 3
    assert ContextTokens().cached_prefix([1, 2], answer=1) == 0
