"""The demo answers the same, bit for bit, whatever the memory, the policy and the threads.

So it does in a conversation, whose turns go on from what the context holds of those before.

Within each precision: another one gives other answers.

Prompts of the held-out text, 64 tokens each, against the run with the default settings: all of
them where most is different, every fourth for each setting alone. `python -m
benchmarks.same_tokens` has all for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert

import flashllm
from flashllm.engine.loading import load_decoder
from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.options import POLICIES
from flashllm.tokenizer.chat_template import Message
from flashllm.tokenizer.tokenizer import load_tokenizer

PROMPTS = 20
FEWER_PROMPTS = 5
"""Where weights are rounded: the same paths with other kernels."""
SOME = 4
"""Every so many prompts, for one setting alone."""
TOKENS = 64
ROUNDED = ("int8", "int4")
ROOM_BYTES = 8 << 20
"""By how much the process may grow between asking for the smallest ceiling and using it."""


def questions(directory: Path) -> list[str]:
    count = PROMPTS if directory.name not in ROUNDED else FEWER_PROMPTS
    held_out = Path(flashllm.__file__).parent / "demo" / "heldout.jsonl"
    lines = held_out.read_text(encoding="utf-8").splitlines()
    conversations = [json.loads(line) for line in lines[:: len(lines) // count][:count]]
    return [c["messages"][-1]["content"] for c in conversations]


def answers(directory: Path, every: int = 1, **settings: Any) -> list[list[int]]:
    """The likeliest tokens; the end of an answer is no end here, so that each has all 64."""
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    decoder, _, store = load_decoder(directory, **settings)
    found = []
    with store:
        for question in questions(directory)[::every]:
            logits = decoder.prefill(tokenizer.encode_chat([{"role": "user", "content": question}]))
            ids = [int(np.argmax(logits))]
            while len(ids) < TOKENS:
                ids.append(int(np.argmax(decoder.decode(ids[-1]))))
            found.append(ids)
    return found


@pytest.fixture(scope="module", params=["f16", *ROUNDED])
def directory(
    request: pytest.FixtureRequest, demo: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The demo as it comes, and with all it has rounded, predictors included."""
    if request.param == "f16":
        return demo
    source = Path(flashllm.__file__).parent / "demo"
    out: Path = tmp_path_factory.mktemp("demo") / request.param
    rounded = {"dtype": request.param, "predictor_dtype": request.param}
    convert(source, out, predictors=source / "predictors.safetensors", **rounded)
    return out


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[int]]:
    return answers(directory)


def smallest_memory(directory: Path) -> int:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        load_decoder(directory, memory=10 << 20)
    return caught.value.smallest_bytes + ROOM_BYTES


@pytest.mark.parametrize(
    "settings",
    [{}, {"overlap": "layer", "window": 1}, {"overlap": "none", "policy": "lru", "io_threads": 1}],
    ids=str,
)
def test_the_least_memory(
    directory: Path, expected: list[list[int]], settings: dict[str, Any]
) -> None:
    assert answers(directory, memory=smallest_memory(directory), **settings) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 1},
        {"window": 5},
        {"window": 50},
        {"io_threads": 1},
        {"io_threads": 32},
        {"direct": False},
        {"overlap": "none"},
        {"overlap": "hits"},
        {"overlap": "attention"},
    ],
    ids=str,
)
def test_settings(directory: Path, expected: list[list[int]], settings: dict[str, Any]) -> None:
    assert answers(directory, SOME, **settings) == expected[::SOME]


def test_more_memory(directory: Path, expected: list[list[int]]) -> None:
    assert answers(directory, SOME, memory=2 * smallest_memory(directory)) == expected[::SOME]


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(directory: Path, expected: list[list[int]], policy: str) -> None:
    """With the fewest slots, where each of them gives up other neurons."""
    memory = smallest_memory(directory)
    assert answers(directory, SOME, memory=memory, policy=policy) == expected[::SOME]


def test_the_answers_differ_from_each_other(expected: list[list[int]]) -> None:
    assert len({tuple(ids) for ids in expected}) > len(expected) // 2


DRAWN = Sampling(temperature=0.9, repetition_penalty=1.1, seed=5)
WORDS = ("ocean", "river", "mountain", "teacher", "violin")


class Talk:
    """A chat as a user leads it: each answer's own ids are in the prompt of the next turn."""

    def __init__(self, model: Model) -> None:
        self._model, self._tokenizer = model, model.tokenizer
        self._messages: list[Message] = []
        self._known: dict[int, list[int]] = {}
        self.answers: list[list[int]] = []

    def ask(self, word: str, turn: int, stop_after: int = 0) -> None:
        """The question of a turn, in place of what was there and behind it."""
        del self._messages[2 * turn :]
        self._messages.append({"role": "user", "content": f"What does {word} mean?"})
        ids = self._tokenizer.encode_chat(self._messages, self._known)
        answer: list[int] = []
        if stop_after:
            for _ in self._generation(ids, answer):
                if len(answer) == stop_after:
                    self._model.cancel()
        list(self._generation([*ids, *answer], answer))
        self._known = {n: a for n, a in self._known.items() if n < 2 * turn}
        self._known[2 * turn + 1] = answer
        text = self._tokenizer.decode(answer)
        self._messages.append({"role": "assistant", "content": text})
        self.answers.append(answer)

    def _generation(self, ids: list[int], answer: list[int]) -> Iterator[None]:
        room = TOKENS - len(answer)
        for token in self._model.generate(ids, room, DRAWN, answer=len(answer)):
            answer.append(token.id)
            yield


def talk(directory: Path, **settings: Any) -> list[list[int]]:
    """Answers of five turns: one asked again, one stopped and continued, one edited."""
    with open_model(directory, **settings) as model:
        chat = Talk(model)
        for turn, word in enumerate(WORDS[:3]):
            chat.ask(word, turn)
        chat.ask(WORDS[2], 2)
        chat.ask(WORDS[3], 1)
        chat.ask(WORDS[4], 2, stop_after=5)
        chat.ask(WORDS[0], 3)
        chat.ask(WORDS[1], 4)
        return chat.answers


@pytest.fixture(scope="module")
def talked(directory: Path) -> list[list[int]]:
    return talk(directory)


@pytest.mark.parametrize(
    "settings",
    [{"window": 1, "io_threads": 1}, {"overlap": "none", "policy": "lru", "io_threads": 32}],
    ids=str,
)
def test_a_conversation(directory: Path, talked: list[list[int]], settings: dict[str, Any]) -> None:
    assert talk(directory, memory=smallest_memory(directory), **settings) == talked


def test_a_conversation_is_one_that_was_never_edited(
    directory: Path, talked: list[list[int]]
) -> None:
    """Neither stopped, nor asked twice."""
    with open_model(directory) as model:
        chat = Talk(model)
        for turn, number in enumerate((0, 3, 4, 0, 1)):
            chat.ask(WORDS[number], turn)
    first, _second, third, again, *edited = talked
    assert third == again
    assert chat.answers == [first, *edited]
