"""Slots that a prompt's ring of blocks lies in: lent for the prompt, and all there for tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flashllm.bench.prompt.runs import bytes_missing
from flashllm.engine.local import Model, open_model
from flashllm.errors import Cancelled
from flashllm.flash.layout import read_header
from tests.support.lent_slots import BLOCK, short_of_slots, shorten_blocks

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
SECOND = [44, 7, 3, 90, 21, 21, 60]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch, sparse_model: Path) -> None:
    shorten_blocks(monkeypatch, sparse_model)


def answer(model: Model, prompt: list[int], **settings: Any) -> list[int]:
    return [token.id for token in model.generate(prompt, max_tokens=40, **settings)]


def test_lent_slots_change_no_answer(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        assert not any(model.plan.lent_blocks)
        expected = [answer(model, prompt) for prompt in (PROMPT, SECOND, PROMPT)]
    with short_of_slots(sparse_model) as model:
        assert sum(model.plan.lent_blocks) >= 2
        assert model.plan.own_blocks == 2
        assert [answer(model, prompt) for prompt in (PROMPT, SECOND, PROMPT)] == expected


def test_a_prompt_is_read_into_lent_slots_which_tokens_fill_again(sparse_model: Path) -> None:
    with short_of_slots(sparse_model) as model:
        decoder, lent = model.decoder, model.plan.lent_blocks
        n_slots = model.plan.slots_per_layer
        seen: list[list[int]] = []

        def count() -> list[int]:
            tables = [decoder.pool.layer(i).table for i in range(3)]
            return [
                int(np.count_nonzero(table.bundle_in[n - BLOCK * blocks :] >= 0))
                for table, n, blocks in zip(tables, n_slots, lent, strict=True)
            ]

        def lent_bytes() -> NDArray[np.uint8]:
            """Of all layers' slots, those that are lent."""
            rows = decoder.pool.rows.reshape(sum(n_slots), -1)
            ends = np.cumsum(n_slots)
            return np.concatenate(
                [rows[end - BLOCK * blocks : end] for end, blocks in zip(ends, lent, strict=True)]
            )

        assert not lent_bytes().any()
        decoder.prefill(PROMPT)
        assert lent_bytes().any(axis=1).all()
        for prompt in (PROMPT, SECOND):
            decoder.prefill(prompt, progress=lambda *_: seen.append(count()))
            for token in range(30, 60):
                decoder.decode(token)
            assert any(count())
        assert {tuple(n) for n in seen} == {(0, 0, 0)}
        # What is in a slot is what the file has, also where a block of a prompt had been.
        for layer in range(3):
            table = decoder.pool.layer(layer).table
            taken = np.flatnonzero(table.bundle_in >= 0)
            assert len(taken)
            check_bundles(
                model, sparse_model, layer, table.bundle_in[taken], taken + sum(n_slots[:layer])
            )


def test_a_short_prompt_leaves_all_slots_as_they_are(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ring is in memory that a chunk of so few tokens does not take."""
    monkeypatch.undo()
    shorten_blocks(monkeypatch, sparse_model, has_spare=True)
    with open_model(sparse_model) as model:
        expected = [answer(model, prompt) for prompt in (PROMPT, SECOND, PROMPT)]
    with short_of_slots(sparse_model) as model:
        assert sum(model.plan.lent_blocks) >= 2
        assert [answer(model, prompt) for prompt in (PROMPT, SECOND, PROMPT)] == expected
        pool, missing = model.decoder.pool, bytes_missing(model)
        held = [pool.layer(layer).resident() for layer in range(3)]
        before = model.reader_stats()["bytes_useful"]
        seen: list[bool] = []

        def look(*_: object) -> None:
            now = [pool.layer(layer).resident() for layer in range(3)]
            seen.append(all(np.isin(*pair).all() for pair in zip(held, now, strict=True)))

        model.decoder.prefill(SECOND, progress=look)
        assert seen[0], "something was evicted before it was needed"
        assert model.reader_stats()["bytes_useful"] - before <= missing


def check_bundles(model: Model, directory: Path, layer: int, ids: Any, slots: Any) -> None:
    bundles = directory / "ffn.bundles"
    header = read_header(bundles)
    rows = model.decoder.pool.rows.reshape(-1, header.stride)
    with bundles.open("rb") as file:
        for bundle, slot in zip(ids.tolist(), slots.tolist(), strict=True):
            file.seek(header.offset(layer, 0) + bundle * header.stride)
            assert file.read(header.stride) == rows[slot].tobytes(), (layer, bundle)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_prompt_that_is_stopped_gives_all_back(sparse_model: Path, at: int) -> None:
    with open_model(sparse_model) as model:
        expected = answer(model, PROMPT)
    with short_of_slots(sparse_model) as model:
        decoder = model.decoder
        calls = 0

        def stop(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                decoder.cancel()

        with pytest.raises(Cancelled):
            decoder.prefill(PROMPT * 9, progress=stop)
        decoder.clear_cancel()
        assert answer(model, PROMPT) == expected
        free = [decoder.pool.layer(i).table.free_slots for i in range(3)]
        held = [len(decoder.pool.layer(i).resident()) for i in range(3)]
        assert [f + h for f, h in zip(free, held, strict=True)] == list(model.plan.slots_per_layer)
