"""What an idle engine reads ahead: all neurons where they fit, and no answer depends on it."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from flashllm.engine.local import Model, open_model
from flashllm.engine.process.launcher import EngineLauncher
from flashllm.engine.sampling import Sampling
from flashllm.errors import ReadFailed
from flashllm.options import DEFAULT_OPTIONS
from tests.support.screens import WAIT_SECONDS

PROMPT = [5, 17, 40, 8, 61, 33]
DRAWN = Sampling(temperature=1.0, seed=7)
WORKER_ENTRY = "flashllm.library.worker_entry:open_engine"


def read_ahead(model: Model) -> list[float]:
    shares = list(itertools.takewhile(lambda share: share < 1.0, iter(model.warm_up, None)))
    assert shares == sorted(shares)
    return shares


def answered(model: Model) -> tuple[list[int], int]:
    """An answer's ids, and what its prompt read."""
    generation = model.generate(PROMPT, 12, DRAWN)
    ids = [token.id for token in generation]
    return ids, generation.prefill.bytes_read


@pytest.fixture
def expected(sparse_model: Path) -> list[int]:
    with open_model(sparse_model) as model:
        ids, read = answered(model)
        assert read > 0
    return ids


@pytest.mark.parametrize("prompt_neurons", ["exact", "selected"])
def test_with_room_for_all_the_first_prompt_reads_nothing(
    sparse_model: Path, prompt_neurons: str
) -> None:
    with open_model(sparse_model, prompt_neurons=prompt_neurons) as model:
        ids, _ = answered(model)
    with open_model(sparse_model, prompt_neurons=prompt_neurons) as model:
        assert len(read_ahead(model)) > 1
        assert answered(model) == (ids, 0)
        assert read_ahead(model) == []


@pytest.mark.parametrize("steps", [1, 2])
def test_an_answer_comes_between(sparse_model: Path, expected: list[int], steps: int) -> None:
    with open_model(sparse_model, prompt_neurons="selected") as model:
        selected, _ = answered(model)
    with open_model(sparse_model) as model:
        for _ in range(steps):
            assert model.warm_up() < 1.0
        assert answered(model)[0] == expected
        read_ahead(model)
        assert answered(model) == (expected, 0)
    with open_model(sparse_model, prompt_neurons="selected") as model:
        model.warm_up()
        assert answered(model)[0] == selected
        read_ahead(model)  # what the answer has put into slots lies anywhere
        assert answered(model) == (selected, 0)


def test_memory_that_goes_ends_it(sparse_model: Path, expected: list[int]) -> None:
    with open_model(sparse_model) as model:
        model.warm_up()
        assert model.release_slots(64 << 10) > 0
        assert model.warm_up() == 1.0
        assert answered(model)[0] == expected
        model.release_slots(0)
        read_ahead(model)
        assert answered(model) == (expected, 0)


def test_where_not_all_fit_nothing_is_read(sparse_model: Path) -> None:
    for options in ({"policy": "window"}, {"select": "all"}):
        with open_model(sparse_model, **options) as model:
            before = model.reader_stats()["bytes_read"]
            assert model.warm_up() == 1.0
            assert model.reader_stats()["bytes_read"] == before


def test_not_from_within_an_answer_and_not_when_closed(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        heard = []
        list(model.generate(PROMPT, 1, on_prefill=lambda *_: heard.append(model.warm_up())))
        assert set(heard) == {1.0}
    assert model.warm_up() == 1.0


def test_a_read_that_fails_is_left_to_the_answer(
    sparse_model: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(sparse_model) as model:
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise ReadFailed("a bad sector")

            assert model.warm_up() < 1.0
            patch.setattr(model.decoder._store, "wait_bundles", fail)
            assert model.warm_up() == 1.0
        assert answered(model)[0] == expected
        read_ahead(model)
        assert answered(model) == (expected, 0)


def test_the_engine_of_the_chat_reads_ahead_by_itself(
    sparse_model: Path, expected: list[int]
) -> None:
    shares: list[float] = []
    is_over = threading.Event()

    def hear(share: float) -> None:
        shares.append(share)
        if share == 1.0:
            is_over.set()

    launcher = EngineLauncher(DEFAULT_OPTIONS, WORKER_ENTRY)
    with launcher.open(str(sparse_model), on_warming=hear) as engine:
        assert is_over.wait(WAIT_SECONDS)
        generation = engine.generate(PROMPT, max_tokens=12, sampling=DRAWN)
        assert [token.id for token in generation] == expected
        assert generation.prefill.bytes_read == 0
    assert shares == sorted(shares)
