"""An allocation that fails ends an answer with an error of ours, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from flashllm import core
from flashllm.engine.local import Model, open_model
from flashllm.errors import OutOfMemory
from flashllm.large_arrays import Floats, LargeArrays

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]


class FailingAt:
    """The array number `number` that computing asks for gets no memory."""

    def __init__(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        empty = LargeArrays.empty

        def limited(arrays: LargeArrays, *shape: int) -> Floats:
            self.calls += 1
            if self.calls == number:
                raise MemoryError
            return empty(arrays, *shape)

        monkeypatch.setattr(LargeArrays, "empty", limited)


def answer(model: Model, prompt: list[int] = PROMPT) -> list[int]:
    return [token.id for token in model.generate(prompt, max_tokens=4)]


def outcome(model: Model) -> list[int] | OutOfMemory:
    try:
        return answer(model)
    except OutOfMemory as error:
        return error


def test_whichever_array_fails_the_next_answer_is_right(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(model)
    other = answer(model, PROMPT[::-1])
    completed = False
    # Steps that share no factor with the layers' arrays reach every kind of them.
    for number in itertools.count(1, 7):
        model.forget()
        with monkeypatch.context() as patch:
            failing = FailingAt(number, patch)
            found = outcome(model)
        if isinstance(found, OutOfMemory):
            assert "while computing" in str(found)
            assert found.__context__ is None, "it would hold the memory of the frames"
        else:
            assert failing.calls < number, "a failed call was taken for a success"
            assert found == expected
            completed = True
        if number % 3 == 0 or completed:
            assert answer(model, PROMPT[::-1]) == other
            assert answer(model) == expected
        if completed:
            break
    assert number > 100


def count_buffers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many the opening of a model makes."""
    made: list[int] = []
    buffer = core.Buffer

    def counted(nbytes: int, **options: bool) -> core.Buffer:
        made.append(nbytes)
        return buffer(nbytes, **options)

    with monkeypatch.context() as patch:
        patch.setattr(core, "Buffer", counted)
        open_model(directory).close()
    return len(made)


def test_opening_that_gets_no_memory_opens_later(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(sparse_model) as model:
        expected = answer(model)
    buffer, buffers = core.Buffer, count_buffers(sparse_model, monkeypatch)
    assert buffers > 4
    for number in range(1, buffers + 1):
        made = itertools.count(1)

        def limited(
            nbytes: int, number: int = number, made: Any = made, **options: bool
        ) -> core.Buffer:
            if next(made) == number:
                raise MemoryError
            return buffer(nbytes, **options)

        with monkeypatch.context() as patch:
            patch.setattr(core, "Buffer", limited)
            with pytest.raises(OutOfMemory, match=f"while opening {sparse_model}"):
                open_model(sparse_model)
    with open_model(sparse_model) as model:
        assert answer(model) == expected
